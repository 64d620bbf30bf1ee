"""The folders of tiny models, and their export without a command around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

from optkit.runtimes import backend
from optkit.sources import hugging_face
from optkit.sources.log import ExportLog
from tests.matrix import families

ENCODERS = {
    **families.ENCODERS,
    "clip-vision": lambda: hf.CLIPVisionModelWithProjection(
        hf.CLIPVisionConfig(projection_dim=16, **families.CLIP_VISION)
    ),
    "llama-classifier": lambda: hf.LlamaForSequenceClassification(
        families.DECODERS["llama"]().config
    ),
}


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
        if name in families.FAMILIES:
            return families.write(name, base / name)
        return families.saved(ENCODERS[name], base / name)

    return folder
