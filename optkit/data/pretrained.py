"""Loads objects of transformers from a model's folder: only local files, and none of the folder's
code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from optkit.data import reading, reads

PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""The configuration of an image processor or a feature extractor."""


def holds_processor(folder: Path) -> bool:
    """Whether a folder has the configuration of an image processor or a feature extractor."""
    return any((folder / name).is_file() for name in PROCESSORS)


def loader(auto: str, folder: Path) -> Callable[..., Any]:
    """`from_pretrained` of transformers' class `auto` for that folder; the function may raise any
    error of its many classes. Raises ToolchainMissing."""
    reads.note_names(folder)  # if it were created, it would be read instead
    load = getattr(reading.optional("transformers", "hf"), auto).from_pretrained
    return partial(load, str(folder), local_files_only=True, trust_remote_code=False)
