"""The model and the settings that a user gives on the command line or in a Python call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """A model, its recipe, and settings that override the recipe.

    model: "file.py:factory", "package.module:factory", "x.onnx", "x.pt2", a Hugging Face folder or
        "org/name"; None: the recipe's.
    recipe: its name, its path, or its keys and values; None: the recipe in the model's folder, else
        the project's, else (if there is a model) a recipe with the model and no other key.
    overrides: "KEY=VALUE", each value in YAML, e.g. "gates.max_drop=1%".
    task, adapter, trust_remote_code: for a Hugging Face model: its task, the folder of a PEFT LoRA
        adapter to merge, and whether the Python code in its folder may run.
    calibration: calibration data (a file or folder), or a source. ranges: a file with ranges of
        activations that another tool has chosen.
    eval_task: the evaluation task, by name or as file.py. eval_data: the path that it reads.
    shapes, min_shapes, opt_shapes, max_shapes: "NAME:AxBxC,…", as for trtexec; `shapes` sets all
        three.

    Relative paths are relative to the current folder.
    """

    model: str | None = None
    recipe: str | Path | Mapping[str, object] | None = None
    overrides: tuple[str, ...] = ()
    task: str | None = None
    adapter: str | None = None
    trust_remote_code: bool = False
    calibration: str | None = None
    ranges: str | None = None
    eval_task: str | None = None
    eval_data: str | None = None
    shapes: str | None = None
    min_shapes: str | None = None
    opt_shapes: str | None = None
    max_shapes: str | None = None
