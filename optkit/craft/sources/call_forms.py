"""Forms of calls that torch's exporter does not take: a roll by a size of the input, the largest
number of all axes together; and `-(-size // 4)`, which it rounds to zero."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any


def translations() -> dict[Any, Callable[..., Any]]:
    """For torch's exporter: operator → function of onnxscript."""
    import torch

    aten = torch.ops.aten
    return {
        aten.roll.default: _roll,
        aten.amax.default: partial(_extreme, "Max"),
        aten.amin.default: partial(_extreme, "Min"),
        operator.floordiv: _floor_divide,
    }


def _roll(x: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """aten::roll. Shifts are numbers, or INT64 scalars of the graph."""
    import onnxscript

    onnx: Any = onnxscript.opset21
    if not dims:
        flat = _roll(onnx.Reshape(x, [-1]), shifts, [0])
        return onnx.Reshape(flat, onnx.Shape(x))
    axes = [dim if dim >= 0 else dim + len(x.shape) for dim in dims]
    for shift, dim in zip(shifts, axes, strict=True):
        size = onnx.Cast(onnx.Shape(x, start=dim, end=dim + 1), to=7)
        size = onnx.Max(size, onnx.Constant(value_ints=[1]))  # no modulus is 0
        first = onnx.Mod(onnx.Neg(onnx.Reshape(shift, [1])), size)
        end = onnx.Slice(x, first, size, [dim])
        x = onnx.Concat(end, onnx.Slice(x, [0], first, [dim]), axis=dim)
    return x


def _floor_divide(a: Any, b: Any) -> Any:
    """Of sizes. Div of ONNX rounds to zero; the rest of Mod has the sign of b."""
    import onnxscript

    onnx: Any = onnxscript.opset21
    a, b = (onnx.Constant(value_int=one) if isinstance(one, int) else one for one in (a, b))
    return onnx.Div(onnx.Sub(a, onnx.Mod(a, b)), b)


def _extreme(kind: str, x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """aten::amax and aten::amin. `kind`: Max or Min."""
    import onnxscript
    from onnxscript.function_libs.torch_lib.ops import core

    if dim:
        return getattr(core, f"aten_a{kind.lower()}")(x, dim, keepdim)
    return getattr(onnxscript.opset21, f"Reduce{kind}")(x, keepdims=int(keepdim))
