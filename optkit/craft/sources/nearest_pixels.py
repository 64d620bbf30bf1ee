"""`interpolate(mode="nearest")` to a given size, with the pixels that torch reads.

Pixel i of a row is pixel floor(i · (in / out)) of the given one, which torch computes in float32.
Resize of ONNX Runtime computes floor(i / (out / in)). Where the quotient is an integer, as for
pixel 37 from 6 to 74, one of the two may round below it: they differ for 357 of the 9,604 pairs of
sizes below 100. So a row whose sizes are free, or differ in this way, is a lookup by torch's
formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def translations() -> dict[Any, Callable[..., Any]]:
    """For torch's exporter: operator → function of onnxscript."""
    import torch

    names = (f"upsample_nearest{axes}d" for axes in (1, 2, 3))
    return {getattr(torch.ops.aten, name).vec: _nearest for name in names}


def _nearest(x: Any, output_size: Any = None, scale_factors: Any = None) -> Any:
    """aten::upsample_nearest…d.vec: x [batch, channels, sizes]."""
    import onnxscript
    from onnxscript.function_libs.torch_lib.ops import nn

    if scale_factors is not None:
        return nn.aten_upsample_nearestnd_vec(x, None, scale_factors)
    sizes = list(output_size)
    given = [x.shape[2 + axis] for axis in range(len(sizes))]
    if all(map(_agree, given, sizes)):
        return nn.aten_upsample_nearestnd_vec(
            x, onnxscript.opset21.Constant(value_ints=sizes), None
        )
    for axis, (size, new) in enumerate(zip(given, sizes, strict=True), start=2):
        if size != new:
            x = _along(x, axis, new)
    return x


def _agree(size: object, new: object) -> bool:
    """Whether torch and Resize read the same pixels, of two sizes that are known."""
    if not isinstance(size, int) or not isinstance(new, int):
        return False
    pixels = np.arange(new, dtype=np.float32)
    torchs = np.floor(pixels * (np.float32(size) / np.float32(new)))
    return bool((torchs == np.floor(pixels / (np.float32(new) / np.float32(size)))).all())


def _along(x: Any, axis: int, new: Any) -> Any:
    """The lookup along one axis. `new`: a number, or an INT64 scalar of the graph."""
    import onnxscript

    onnx: Any = onnxscript.opset21
    size = onnx.Squeeze(onnx.Shape(x, start=axis, end=axis + 1))
    ratio = onnx.Div(onnx.Cast(size, to=1), onnx.Cast(new, to=1))
    pixels = onnx.Cast(onnx.Range(0, new, 1), to=1)
    places = onnx.Cast(onnx.Floor(onnx.Mul(pixels, ratio)), to=7)
    return onnx.Gather(x, onnx.Min(places, onnx.Sub(size, 1)), axis=axis)
