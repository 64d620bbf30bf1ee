"""`len(tensor)` in the code of a model, without fixing the axis.

torch.export runs the code of a model with symbolic sizes. Python's `len` must return an int, so
`len(tensor)` makes the first axis a constant (RT-DETR takes its batch size in this way).
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def symbolic(module: nn.Module) -> Iterator[None]:
    """In the Python modules that define the parts of `module`, `len` of a tensor is its shape[0].
    Modules with a `len` of their own, and those of torch, stay as they are."""
    names = {type(part).__module__ for part in module.modules()}
    files = [
        sys.modules[name]
        for name in names
        if name.partition(".")[0] != "torch"
        and name in sys.modules
        and "len" not in vars(sys.modules[name])
    ]
    for file in files:
        vars(file)["len"] = _length
    try:
        yield
    finally:
        for file in files:
            vars(file).pop("len", None)


def _length(value: object) -> object:
    import torch

    if isinstance(value, torch.Tensor) and value.dim():
        return value.shape[0]
    return builtins.len(value)  # type: ignore[arg-type]
