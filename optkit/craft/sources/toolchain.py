"""torch and its exporter: a missing library is an error that names its extra; their output is
suppressed."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING

from optkit.facts.errors import ToolchainMissing
from optkit.ground.execute.local import trim

if TYPE_CHECKING:
    from torch import nn

_HUGGING_FACE = "pip install 'optkit[hf]'"


def require() -> ModuleType:
    """The torch module. Raises ToolchainMissing if it, or the library of its exporter, is
    missing."""
    _require("pip install 'optkit[torch]'; an .onnx file needs neither", "torch", "onnxscript")
    return importlib.import_module("torch")


def require_hugging_face() -> None:
    """Raises ToolchainMissing if transformers, or the library that loads a model's class, is
    missing."""
    require()
    _require(_HUGGING_FACE, "transformers", "optimum.exporters.tasks")


def require_peft() -> None:
    """Raises ToolchainMissing if peft, which merges adapters, is missing."""
    _require(_HUGGING_FACE, "peft")


def _require(hint: str, *names: str) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ToolchainMissing(
                f"{name} cannot be imported: {error}", where="export", hint=hint
            ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what torch's exporter prints, logs and warns; optkit reports its errors in its own
    words."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def bytes_of(module: nn.Module) -> int:
    """The bytes of the weights and buffers of a module."""
    return sum(one.nbytes for one in chain(module.parameters(), module.buffers()))


def release(values: Iterable[object]) -> None:
    """Free the memory of all tensors among these objects, which cannot be used afterwards: torch
    and its exporter keep traced graphs, and these keep their weights."""
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            value.data = value.data.new_empty(0)
    trim()
