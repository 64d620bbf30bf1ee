"""Scale maths on arrays: what a code means. No graph appears here.

Affine quantization (Jacob et al. 2018, arXiv:1712.05877, eq. 1; Wu et al. 2020, arXiv:2004.09602,
section 3), in the form of ONNX QuantizeLinear and DequantizeLinear:

    q = clip(round(x / s) + z, qmin, qmax)      round half to even
    x' = (q - z) * s                            |x' - x| <= s / 2 inside the range

A scale is rounded to the dtype that carries it *before* codes are computed, so a graph with FP16
scales and its FP32 simulation hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optkit.precision import NumberFormat

_BIAS_STEPS = 2.0**30


class Scale(NamedTuple):
    """`scale` (float32 values that the carrier dtype holds exactly) and zero point.

    `clamped`: how many scales were moved to the smallest normal or the largest finite number of the
    carrier, because the ideal one is subnormal (engines flush it to zero) or overflows.
    """

    scale: np.ndarray
    zero_point: np.ndarray
    clamped: int


def weight_scale(
    w: np.ndarray,
    axis: int | None,
    fmt: NumberFormat,
    carrier: np.dtype | type,
    floor: np.ndarray | float = 0.0,
) -> Scale:
    """Symmetric absmax scales s = max(max|w| / qmax, floor), one per index of `axis` (None: one
    scale of rank 0 for the whole array).

    A channel of only zeros gets scale 1: its codes are zero under any scale.
    """
    reduced = None if axis is None else tuple(d for d in range(w.ndim) if d != axis % w.ndim)
    extreme = np.asarray(np.abs(w.astype(np.float64)).max(axis=reduced, initial=0.0))
    lowest = np.max(floor) if axis is None else floor
    scale, clamped = _carried(np.maximum(extreme / fmt.qmax, lowest), carrier)
    return Scale(scale, np.zeros(scale.shape, fmt.dtype), clamped)


def floor_for_bias(bias: np.ndarray | None, activation: Scale) -> np.ndarray | float:
    """The least weight scales under which |bias| <= 2**30 steps of s_x * s_w, so that an int32 bias
    leaves the accumulator as much again. It binds for channels whose weights vanish (a pruned
    filter, a dead BatchNorm channel): their bias is all they say. No bias: 0."""
    if bias is None:
        return 0.0
    floor: np.ndarray = np.abs(bias.astype(np.float64)) / (float(activation.scale) * _BIAS_STEPS)
    return floor


def bias_scale(activation: Scale, weight: Scale) -> Scale:
    """The scale of an int32 bias, that of the integer products it is added to: s = s_x * s_w."""
    step, clamped = _carried(activation.scale * weight.scale.astype(np.float64), np.float32)
    return Scale(step, np.zeros(step.shape, np.int32), clamped)


def common_scale(parts: Sequence[np.ndarray], carrier: np.dtype | type) -> Scale:
    """g, rank 0: the least of all these per-channel scales (1 if there are none). With `ratio` it
    says s = g * r, so that a kernel sees one scale and codes still use each channel's range.

    The least, because the kernel writes y / r in half precision: with r >= 1 that stays in range
    wherever y does. Where the carrier clamps g the ratios make up for it.
    """
    least = min((float(part.min()) for part in parts if part.size), default=1.0)
    scale, _ = _carried(np.asarray(least), carrier)
    return Scale(scale, np.zeros((), np.int8), 0)


def ratio(scale: Scale, common: Scale, live: np.ndarray, carrier: np.dtype | type) -> Scale:
    """r = s / g per channel, rounded to the carrier; 1 where a channel is not `live` (all zero)."""
    ideal = np.where(live, scale.scale / common.scale.astype(np.float64), 1.0)
    rounded, clamped = _carried(ideal, carrier)
    return Scale(rounded, scale.zero_point, clamped)


def activation_scale(low: float, high: float, fmt: NumberFormat, carrier: np.dtype | type) -> Scale:
    """Scale and zero point, both rank 0, of the range [low, high] widened to hold zero.

    symmetric:  s = max(|low|, |high|) / qmax,      z = 0
    asymmetric: s = (high - low) / (qmax - qmin),   z = round(qmin - low / s): zero has a code of
    its own, which padding needs. A range of only zero gets scale 1.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    span = max(-low, high) / fmt.qmax if fmt.symmetric else (high - low) / (fmt.qmax - fmt.qmin)
    scale, clamped = _carried(np.asarray(span, np.float64), carrier)
    zero = 0 if fmt.symmetric else int(np.clip(np.rint(fmt.qmin - low / scale), fmt.qmin, fmt.qmax))
    return Scale(scale, np.array(zero, fmt.dtype), clamped)


def quantize(x: np.ndarray, scale: Scale, fmt: NumberFormat, axis: int | None = None) -> np.ndarray:
    """Codes of `x`, dtype `fmt.dtype`. The quotient is taken in float32, as runtimes do."""
    s, z = _along(scale.scale, x.ndim, axis), _along(scale.zero_point, x.ndim, axis)
    codes = np.rint(x.astype(np.float32) / s) + z.astype(np.float32)
    saturated: np.ndarray = np.clip(codes, fmt.qmin, fmt.qmax).astype(fmt.dtype)
    return saturated


def dequantize(codes: np.ndarray, scale: Scale, axis: int | None = None) -> np.ndarray:
    """float32 values of codes."""
    s, z = _along(scale.scale, codes.ndim, axis), _along(scale.zero_point, codes.ndim, axis)
    values: np.ndarray = (codes.astype(np.int32) - z.astype(np.int32)).astype(np.float32) * s
    return values


def representable(scale: Scale, fmt: NumberFormat) -> tuple[float, float]:
    """The interval in which a rank-0 scale loses at most s/2; beyond it values are clipped."""
    s, z = float(scale.scale), int(scale.zero_point)
    return (fmt.qmin - z - 0.5) * s, (fmt.qmax - z + 0.5) * s


def _carried(ideal: np.ndarray, carrier: np.dtype | type) -> tuple[np.ndarray, int]:
    """Round ideal scales (float64, ≥ 0) to the carrier, never zero, subnormal or infinite."""
    limits = np.finfo(carrier)
    wanted = np.where(ideal == 0, 1.0, ideal)
    held = np.clip(wanted, float(limits.smallest_normal), float(limits.max))
    rounded: np.ndarray = held.astype(carrier).astype(np.float32)
    return rounded, int((held != wanted).sum())


def _along(parameter: np.ndarray, ndim: int, axis: int | None) -> np.ndarray:
    if axis is None or parameter.ndim == 0:
        return parameter
    shape = [1] * ndim
    shape[axis] = -1
    return parameter.reshape(shape)
