"""The folders of tiny models, and their export without a command around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optkit.craft.sources import hugging_face
from optkit.craft.sources.export_log import ExportLog
from optkit.ground.runtimes import backend
from tests.matrix import families

ENCODERS = (
    "bert", "roberta", "distilbert", "deberta-v2", "vit", "deit", "swin", "resnet", "convnext",
    "mobilenet-v2", "clip", "clip-vision", "llama-classifier",
)  # fmt: skip
DECODERS = ("gpt2", "llama", "qwen2", "mistral", "phi3", "gemma")


def export(folder: Path, out: Path, **options: Any) -> ExportLog:
    given = {"specs": (), "axes": {}, "task": None, "part": None, "trusted": False, **options}
    return hugging_face.export(
        folder,
        given.pop("specs"),
        given.pop("axes"),
        out,
        session=lambda path: backend("onnxruntime").session(path),
        progress=lambda what, fraction: None,
        **given,
    )


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family, made once."""
    base = tmp_path_factory.mktemp("models")

    def folder(name: str) -> Path:
        if (base / name).exists():
            return base / name
        return families.write(name, base / name)

    return folder
