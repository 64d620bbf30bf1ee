"""Loads objects of transformers from a model's folder: only local files, and none of the folder's
code."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from optkit.ground.data import reading

PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""The configuration of an image processor or a feature extractor."""


def holds_processor(folder: Path) -> bool:
    """Whether a folder has the configuration of an image processor or a feature extractor."""
    return any((folder / name).is_file() for name in PROCESSORS)


def preprocessing(folder: Path | None) -> str | None:
    """The name in `optkit.data.preprocessing` that the export of a Python model wrote into its
    configuration; None if there is none."""
    file = None if folder is None else folder / PROCESSORS[0]
    if file is None or not file.is_file():
        return None
    try:
        config = json.loads(file.read_bytes())
    except ValueError:  # transformers says what is wrong with it
        return None
    name = config.get("preprocessing") if isinstance(config, dict) else None
    return name if isinstance(name, str) else None


def loader(auto: str, folder: Path) -> Callable[..., Any]:
    """`from_pretrained` of transformers' class `auto` for that folder; the function may raise any
    error of its many classes. Raises ToolchainMissing."""
    load = getattr(reading.optional("transformers", "hf"), auto).from_pretrained
    return partial(load, str(folder), local_files_only=True, trust_remote_code=False)
