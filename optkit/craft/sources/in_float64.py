"""A module in float64, whatever types its code fixes: its result without rounding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from optkit.facts.tensors import Feed

if TYPE_CHECKING:
    from torch import nn


def exact(module: nn.Module, run: Callable[[nn.Module, Feed], Feed], feed: Feed) -> Feed | None:
    """What `run` returns for the module in float64; None if the module cannot be so."""
    try:
        double = copy.deepcopy(module).double()
        wide = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in feed.items()}
        with _widened():
            return run(double, wide)
    except Exception:  # of what the module holds besides weights, or of its own operators
        return None


@contextmanager
def _widened() -> Iterator[None]:
    """During the body, floats have 64 bits, also where code asks for another type."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils import _pytree

    casts = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)

    def wide(value: object) -> object:
        fixed = isinstance(value, torch.dtype) and value.is_floating_point
        return torch.float64 if fixed else value

    class Wide(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            args, kwargs = _pytree.tree_map(wide, (args, kwargs or {}))
            return (torch.Tensor.double if function in casts else function)(*args, **kwargs)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Wide():
            yield
    finally:
        torch.set_default_dtype(before)
