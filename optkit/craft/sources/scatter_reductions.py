"""torch's `scatter_reduce`: the mean, which ScatterElements of ONNX has not, and infinities.

torch's exporter writes a mean as the last of the values, and begins a maximum without the tensor
itself at the largest negative number, above -∞.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

_ONNX = {"sum": "add", "mean": "add", "prod": "mul", "amin": "min", "amax": "max"}
_BEGIN = {"sum": 0, "mean": 0, "prod": 1, "amin": inf, "amax": -inf}  # changes no result


def translations() -> dict[Any, Callable[..., Any]]:
    """For torch's exporter: operator → function of onnxscript."""
    import torch

    return {torch.ops.aten.scatter_reduce.two: _scatter_reduce}


def _scatter_reduce(
    x: Any, dim: int, index: Any, values: Any, reduce: str, include_self: bool = True
) -> Any:
    """aten::scatter_reduce.two."""
    import onnxscript
    from onnxscript.function_libs.torch_lib.ops import core

    onnx: Any = onnxscript.opset21
    floats = x.dtype.is_floating_point()
    if not x.shape or not (floats or reduce == "mean"):
        return core.aten_scatter_reduce(x, dim, index, values, reduce, include_self)

    def filled(number: float, like: Any) -> Any:
        return onnx.Expand(onnx.CastLike(number, x), onnx.Shape(like))

    if not include_self:
        x = onnx.ScatterElements(x, index, filled(_BEGIN[reduce], index), axis=dim)
    found = onnx.ScatterElements(x, index, values, axis=dim, reduction=_ONNX[reduce])
    if reduce != "mean":
        return found
    first, one = filled(float(include_self), x), filled(1.0, index)
    count = onnx.ScatterElements(first, index, one, axis=dim, reduction="add")
    count = onnx.Max(count, onnx.CastLike(1.0, x))
    if floats:
        return onnx.Div(found, count)
    return onnx.Div(onnx.Sub(found, onnx.Mod(found, count)), count)  # rounds down
