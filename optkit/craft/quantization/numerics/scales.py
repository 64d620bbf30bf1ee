"""Computation of scales: the size of one unit of the codes. This module works on arrays, without a
graph.

Affine quantization (Jacob et al. 2018, arXiv:1712.05877, eq. 1; Wu et al. 2020, arXiv:2004.09602,
section 3), in the form of ONNX QuantizeLinear and DequantizeLinear:

    q = clip(round(x / s) + z, qmin, qmax)      round half to even
    x' = (q - z) * s                            |x' - x| <= s / 2 inside the range

A scale is rounded to the carrier dtype *before* codes are computed, so a graph with FP16 scales and
its FP32 simulation have the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from optkit.craft.quantization.numerics import clipping, format_codes
from optkit.facts.dtypes import FLOATS
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import BIAS_STEPS, SCALABLE, NumberFormat

Search = Literal["absmax", "mse"]

OF_LARGEST_WEIGHT = 256.0
"""The E4M3 scale of the block with the largest weight (NVFP4). Not the largest one, so that the
search can map this weight to 4 instead of 6 as well, with the scale 384 (Cook et al. 2025,
arXiv:2512.02010)."""


class Scale(NamedTuple):
    """`scale` (float32 values that the carrier dtype represents exactly) and zero point.

    The shape is [] for a tensor, [N] for channels, or [ceil(K / block), N] for blocks. `clamped`:
    how many scales were changed to the smallest normal or largest finite number of the carrier,
    because the ideal scale is subnormal (engines flush it to zero) or overflows. `outer`: float32
    of rank 0 for scales of two levels, scale = E4M3 number * outer (`two_level` separates them).
    """

    scale: np.ndarray
    zero_point: np.ndarray
    clamped: int
    outer: np.ndarray | None = None


def weight_scale(
    w: np.ndarray,
    axis: int | None,
    fmt: NumberFormat,
    carrier: np.dtype | type,
    floor: np.ndarray | float = 0.0,
    *,
    search: Search = "absmax",
    importance: np.ndarray | None = None,
    outer: np.ndarray | None = None,
) -> Scale:
    """Scales s = max(max|w| / largest, floor), one per index of `axis` (None: one for the array),
    or one per block along the first axis of w [K, N]; for blocks `axis` is ignored.

    Signed scales (`NumberFormat.signed_scale`) are negative if the number with the largest
    magnitude is positive, so that the lowest code represents it: s = -max|w| / largest. Asymmetric
    integers: s = (max w - min w) / (qmax - qmin), with the range widened to contain zero. If all
    numbers are zero, the scale is 1. The search "mse" finds the scale with the least squared error
    near these (`clipping.least_error`); `importance`, [K] or [K, K], are the second moments of the
    inputs. Blocks of E2M1 have E4M3 scales under `outer`, by default computed from `w`.

    Raises InputRefused if a weight is not finite.
    """
    low, high = _extremes(w, axis, fmt)
    if fmt.symmetric or not fmt.is_integer:
        extreme = np.maximum(-low, high)
        ideal, offset = extreme / fmt.largest, np.zeros(extreme.shape)
        if fmt.signed_scale:
            ideal = np.where(high > -low, -ideal, ideal)
    else:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        ideal = (high - low) / (fmt.qmax - fmt.qmin)
        offset = np.divide(-low, ideal, out=np.zeros(ideal.shape), where=ideal > 0)
    zero = np.clip(np.rint(fmt.qmin + offset), fmt.qmin, fmt.qmax) if offset.any() else offset
    if not fmt.has_two_levels:
        outer = None
    elif outer is None:
        outer = outer_scale(float(extreme.max(initial=0.0)), OF_LARGEST_WEIGHT)
    least = np.max(floor) if ideal.ndim == 0 else floor

    if search == "mse" and w.size:
        matrix = w if fmt.granularity == "block" else _matrix(w, axis)
        ideal = clipping.least_error(
            matrix, ideal, zero, fmt, lambda s: carried(s, carrier, outer)[0], importance, least
        )
    scale, clamped = carried(clipping.floored(ideal, least), carrier, outer)
    return Scale(scale, zero.astype(np.int16).astype(format_codes.storage(fmt)), clamped, outer)


def outer_scale(extreme: float, of_largest: float = format_codes.E4M3_MOST) -> np.ndarray:
    """The outer scale of NVFP4 blocks, float32 of rank 0: with the largest code, 6, the number with
    the largest magnitude in the tensor has the E4M3 scale `of_largest`."""
    largest = of_largest * FLOATS["float4e2m1"].largest
    return carried(np.asarray(extreme / largest), np.float32)[0]


def two_level(scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """The E4M3 scales of blocks (dtype float8_e4m3fn), and their outer scale, float32 of rank 0."""
    assert scale.outer is not None
    return format_codes.encode(scale.scale / scale.outer, format_codes.E4M3), scale.outer


def not_finite(w: np.ndarray) -> InputRefused:
    """The error for weights with NaN or infinity; it names the first such weight and its index."""
    rows = (np.argwhere(~np.isfinite(row.astype(np.float32))) for row in w)
    first, inside = next((i, places[0]) for i, places in enumerate(rows) if len(places))
    index = (first, *map(int, inside))
    return InputRefused(f"a weight is not finite: {w[index]} at index {list(index)}")


def scalable(w: np.ndarray) -> bool:
    """Whether FP16 can represent a scale for 8-bit codes of all these numbers. Larger numbers are
    not searched, because their squares overflow in float32."""
    return bool(np.abs(w).max(initial=0.0) <= SCALABLE)


def expand(parameter: np.ndarray, fmt: NumberFormat, k: int) -> np.ndarray:
    """A scale or zero point in a shape that broadcasts against weights [K, N]."""
    if parameter.ndim < 2:
        return parameter
    assert fmt.block_size is not None
    repeated: np.ndarray = np.repeat(parameter, fmt.block_size, axis=0)[:k]
    return repeated


def floor_for_bias(bias: np.ndarray | None, activation: Scale) -> np.ndarray | float:
    """The least weight scales with |bias| <= BIAS_STEPS steps of s_x * s_w. This affects channels
    with weights near zero (a pruned filter, a dead BatchNorm channel), whose output is only the
    bias. Without a bias: 0."""
    if bias is None:
        return 0.0
    floor: np.ndarray = np.abs(bias.astype(np.float64)) / (float(activation.scale) * BIAS_STEPS)
    return floor


def bias_scale(activation: Scale, weight: Scale) -> Scale:
    """The scale of an int32 bias: that of the integer products to which it is added, s = s_x *
    s_w."""
    step, clamped = carried(activation.scale * weight.scale.astype(np.float64), np.float32)
    return Scale(step, np.zeros(step.shape, np.int32), clamped)


def common_scale(parts: Sequence[np.ndarray], carrier: np.dtype | type) -> Scale:
    """g, rank 0: the least of these per-channel scales (1 if there are none). With `ratio`, s = g *
    r, so a kernel needs only one scale, and the codes still use the range of each channel.

    The least scale is used because the kernel writes y / r in half precision: with r >= 1 this does
    not overflow if y does not. If the carrier clamps g, the ratios compensate for it.
    """
    least = min((float(part.min()) for part in parts if part.size), default=1.0)
    scale, _ = carried(np.asarray(least), carrier)
    return Scale(scale, np.zeros((), np.int8), 0)


def ratio(scale: Scale, common: Scale, live: np.ndarray, carrier: np.dtype | type) -> Scale:
    """r = s / g per channel, rounded to the carrier; 1 for a channel that is not `live` (all
    zero)."""
    ideal = np.where(live, scale.scale / common.scale.astype(np.float64), 1.0)
    rounded, clamped = carried(ideal, carrier)
    return Scale(rounded, scale.zero_point, clamped)


def activation_scale(low: float, high: float, fmt: NumberFormat, carrier: np.dtype | type) -> Scale:
    """Scale and zero point, both rank 0, of the range [low, high] widened to contain zero.

        symmetric:  s = max(|low|, |high|) / largest,   z = 0
        asymmetric: s = (high - low) / (qmax - qmin),   z = round(qmin - low / s)

    With the asymmetric form zero has an exact code, which padding needs. The range [0, 0] gets
    scale 1.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    symmetric = fmt.symmetric or not fmt.is_integer
    span = max(-low, high) / fmt.largest if symmetric else (high - low) / (fmt.qmax - fmt.qmin)
    scale, clamped = carried(np.asarray(span, np.float64), carrier)
    zero = 0 if symmetric else int(np.clip(np.rint(fmt.qmin - low / scale), fmt.qmin, fmt.qmax))
    return Scale(scale, np.array(zero, format_codes.storage(fmt)), clamped)


def quantize(x: np.ndarray, scale: Scale, fmt: NumberFormat, axis: int | None = None) -> np.ndarray:
    """Codes of `x`, dtype `storage(fmt)`. The division is in float32, as in runtimes.

    `axis`: the axis of per-channel scales; blocks are along the first axis of x [K, N].
    """
    s, z = (_along(part, x.shape, axis, fmt) for part in scale[:2])
    return format_codes.encode(x.astype(np.float32) / s, fmt, _offset(z))


def dequantize(
    codes: np.ndarray, scale: Scale, axis: int | None = None, fmt: NumberFormat | None = None
) -> np.ndarray:
    """float32 values of codes. `fmt` is the format of the codes; for integers only blocks need
    it."""
    s, z = (_along(part, codes.shape, axis, fmt) for part in scale[:2])
    if fmt is not None:
        units = format_codes.decode(codes, fmt, _offset(z))
    else:
        units = (codes.astype(np.int32) - z.astype(np.int32)).astype(np.float32)
    units *= s
    return units


def carried(
    ideal: np.ndarray, carrier: np.dtype | type, outer: np.ndarray | None = None
) -> tuple[np.ndarray, int]:
    """The scales in the graph for ideal scales (float64): float32, never zero, subnormal or
    infinite; and how many were changed to achieve this. 0 becomes 1; the sign does not change.

    They are rounded to the carrier; with `outer`, to E4M3 numbers times `outer`.
    """
    if outer is not None:
        wanted = np.where(ideal == 0, 1.0, ideal / float(outer))
        held = np.clip(wanted, format_codes.E4M3_LEAST, format_codes.E4M3_MOST)
        return format_codes.nearest(held, format_codes.E4M3) * outer, int((held != wanted).sum())
    dtype = FLOATS[np.dtype(carrier).name]
    wanted = np.where(ideal == 0, 1.0, ideal)
    size = np.clip(np.abs(wanted), dtype.smallest, dtype.largest)
    held = np.copysign(size, wanted)
    rounded: np.ndarray = held.astype(carrier).astype(np.float32)
    return rounded, int((held != wanted).sum())


def representable(scale: Scale, fmt: NumberFormat) -> tuple[float, float]:
    """The interval that a rank-0 scale covers without clipping; within it, integers have an error
    of at most s / 2."""
    s = float(scale.scale)
    if not fmt.is_integer:
        return -fmt.largest * s, fmt.largest * s
    z = int(scale.zero_point)
    return (fmt.qmin - z - 0.5) * s, (fmt.qmax - z + 0.5) * s


def _extremes(w: np.ndarray, axis: int | None, fmt: NumberFormat) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest weight under each scale, float64; 0 for an empty array."""
    if fmt.granularity == "block":
        extremes = [_of_blocks(reduce, w, fmt.block_size) for reduce in (np.minimum, np.maximum)]
    else:
        reduced = None if axis is None else tuple(d for d in range(w.ndim) if d != axis % w.ndim)
        if w.size == 0:
            extremes = [np.abs(w).max(axis=reduced, initial=0.0)] * 2
        else:
            extremes = [w.min(axis=reduced), w.max(axis=reduced)]
    low, high = (np.asarray(part, np.float64) for part in extremes)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise not_finite(w)
    return low, high


def _of_blocks(reduce: np.ufunc, w: np.ndarray, size: int | None) -> np.ndarray:
    assert size is not None and w.ndim == 2
    k, n = w.shape
    whole = k - k % size
    reduced: np.ndarray = reduce.reduce(w[:whole].reshape(-1, size, n), axis=1)
    return reduced if whole == k else np.vstack([reduced, reduce.reduce(w[whole:], axis=0)])


def _matrix(w: np.ndarray, axis: int | None) -> np.ndarray:
    """[K, N]: the summed elements by the channels. Without a channel axis, the first axis by all
    others."""
    if axis is None:
        return w.reshape(w.shape[0] if w.ndim else 1, -1)
    return np.moveaxis(w, axis, -1).reshape(-1, w.shape[axis])


def _along(
    parameter: np.ndarray, against: tuple[int, ...], axis: int | None, fmt: NumberFormat | None
) -> np.ndarray:
    if parameter.ndim == 2 and fmt is not None:
        return expand(parameter, fmt, against[0])
    if axis is None or parameter.ndim == 0:
        return parameter
    shape = [1] * len(against)
    shape[axis] = -1
    return parameter.reshape(shape)


def _offset(zero_point: np.ndarray) -> np.ndarray | float:
    """A zero point in the form for `formats`: plain 0 if there is none."""
    numbers = zero_point.astype(np.float32)
    return numbers if numbers.any() else 0.0
