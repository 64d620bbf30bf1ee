"""GPTQ: rows are rounded one by one, and later rows compensate the error of earlier ones.

Frantar et al. 2022, arXiv:2210.17323, in the equivalent form of Babai's nearest plane (Chen et al.
2025, arXiv:2507.18553). With H = X^T X / n and its factor H = M^T M, M lower triangular,

    |X (w - w')|^2 / n = |M D|^2,   D = w - w' [K, N]
    t_i  = w_i + sum_{j<i} (M_ij / M_ii) D_j         the target of row i, given the rows before it
    w'_i = s_i nearest(t_i / s_i)                    so that row i of M D is M_ii (t_i - w'_i)

This needs one Cholesky factorization and no inverse; the sums of a block of rows are one matrix
product. Rows are solved in the order of falling H_ii ("act-order") with scales from before ("static
groups"). These scales minimize the error that remains after compensation, sum_i M_ii^2 (w_i -
w'_i)^2. Weights H_ii instead would count error that later rows compensate, and cost up to 2 dB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optkit.craft.quantization.numerics import format_codes
from optkit.craft.quantization.numerics.scales import Scale, Search, carried, weight_scale
from optkit.craft.quantization.rounding import quantease
from optkit.craft.quantization.rounding.quantease import ROWS
from optkit.craft.quantization.rounding.rtn import WeightCodes, channels
from optkit.craft.quantization.rounding.triangular_factor import Dense, FewRows, TriangularFactor
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import NumberFormat

_FEW = 3  # so many times more columns than rows: then the factor of the rows is faster


class Rows(NamedTuple):
    """x [n, K], rows of an input: in place of their second moments."""

    x: np.ndarray


class _Layer(NamedTuple):
    """All weights next to each other, [K, N]."""

    codes: np.ndarray
    lost: np.ndarray  # error of each column, float64 [N]
    difference: np.ndarray  # w - w', rows in `order`
    order: np.ndarray  # [K]
    step: np.ndarray  # scales, float32 [groups, N]
    zero: np.ndarray  # zero points in the same shape
    group: np.ndarray  # the group of each row, [K]
    added: float  # added to every H_ii
    ends: np.ndarray  # the end columns of the weights, except the last


def gptq(
    weights: Sequence[np.ndarray],
    inputs: np.ndarray | Rows,
    fmt: NumberFormat,
    carrier: np.dtype | type,
    *,
    scales: Sequence[Scale] | None = None,
    damping: float = 0.01,
    search: Search = "mse",
    sweeps: int = 0,
) -> list[WeightCodes]:
    """Quantize weights [K, N_i] that multiply one input; return the codes with the error of each
    weight.

    inputs: rows of that input, or H = X^T X / n [K, K] of them, factorized in its dtype. scales: of
    each weight, not changed; without them `search` finds scales with importance M_ii^2. damping:
    share of the mean H_ii that is added to all of them; ten times as much if the matrix is not yet
    positive definite.
    sweeps: number of sweeps of coordinate descent afterwards (`quantease`), which also change the
    scales unless they are given. Inputs that were always zero keep their rounded weights.

    Raises InputRefused for weights or inputs that are not finite.
    """
    if not np.isfinite(inputs.x if isinstance(inputs, Rows) else inputs).all():
        raise InputRefused("the second moments of its input are not finite")
    fixed = list(scales) if scales is not None else [None] * len(weights)
    moments, factor = _factorized(inputs, damping, sweeps)
    importance = np.empty(len(factor.order))
    importance[factor.order] = factor.pivots
    chosen = [
        scale or weight_scale(w, channels(fmt), fmt, carrier, search=search, importance=importance)
        for w, scale in zip(weights, fixed, strict=True)
    ]
    layer = _solve(weights, chosen, fmt, factor)
    if sweeps and moments is not None:
        outers = [scale.outer for scale in chosen]
        movable = scales is None and fmt.granularity != "tensor"
        hold = _holding(layer.ends, carrier, outers) if movable else None
        layer = _descend(layer, fmt, moments, sweeps, hold)
        if movable:
            steps = zip(chosen, np.split(layer.step, layer.ends, axis=1), strict=True)
            chosen = [s._replace(scale=step.reshape(s.scale.shape)) for s, step in steps]
    codes = np.split(layer.codes, layer.ends, axis=1)
    errors = [max(float(part.sum()), 0.0) for part in np.split(layer.lost, layer.ends)]
    return [
        WeightCodes(np.ascontiguousarray(part), scale, fmt, error)
        for part, scale, error in zip(codes, chosen, errors, strict=True)
    ]


def _factorized(
    inputs: np.ndarray | Rows, damping: float, sweeps: int
) -> tuple[np.ndarray | None, TriangularFactor]:
    """The second moments, where they are formed, and the factor."""
    if isinstance(inputs, Rows):
        n, k = inputs.x.shape
        if damping > 0 and not sweeps and k >= _FEW * n:
            return None, FewRows.of(inputs.x, damping)
        moments: np.ndarray = inputs.x.T @ inputs.x / np.float32(n)
    else:
        moments = inputs
    return moments, Dense.of(moments, damping)


def _solve(
    weights: Sequence[np.ndarray],
    scales_of: Sequence[Scale],
    fmt: NumberFormat,
    factor: TriangularFactor,
) -> _Layer:
    """Solve row after row. The sums over rows before a block are one product; inside the block they
    are computed row by row."""
    order = factor.order
    difference = np.concatenate([w[order].astype(np.float32) for w in weights], axis=1)
    k, n = difference.shape
    step = _side_by_side(weights, [scale.scale for scale in scales_of])
    zero = _side_by_side(weights, [scale.zero_point for scale in scales_of])
    group = np.arange(k) // (fmt.block_size or k) if len(step) > 1 else np.zeros(k, np.intp)
    codes, lost = np.empty((k, n), format_codes.storage(fmt)), np.zeros(n)
    for start in range(0, k, ROWS):
        rows = slice(start, start + ROWS)
        target = difference[rows] + factor.before(rows, difference)
        s, z = step[group[order[rows]]], zero[group[order[rows]]]
        ratios = factor.within(rows)
        units = quantease.round_in_turn(target, difference[rows], ratios, s, z, fmt)
        codes[order[rows]] = format_codes.encode(units, fmt, z if z.any() else 0.0)
        lost += factor.pivots[rows] @ np.square(target, dtype=np.float64)
        lost -= factor.added * np.square(difference[rows], dtype=np.float64).sum(axis=0)
    ends = np.cumsum([w.shape[1] for w in weights])[:-1]
    return _Layer(codes, lost, difference, order, step, zero, group, factor.added, ends)


def _descend(
    layer: _Layer, fmt: NumberFormat, moments: np.ndarray, sweeps: int, hold: quantease.Hold | None
) -> _Layer:
    h = moments.astype(np.float32)
    h[np.diag_indices(len(h))] += np.float32(layer.added)
    z = layer.zero[layer.group] if layer.zero.any() else 0.0
    units, difference = format_codes.decode(layer.codes, fmt, z), layer.difference
    difference[layer.order] = difference.copy()
    for _ in range(sweeps):
        quantease.sweep(difference, units, h, layer.step, layer.zero, layer.group, fmt)
        if hold is not None:
            quantease.fit_scales(difference, units, h, layer.step, layer.group, hold)
    product = moments.astype(np.float32, copy=False) @ difference
    lost = np.einsum("kn,kn->n", product, difference).astype(np.float64)
    return layer._replace(codes=format_codes.encode(units, fmt, z), lost=lost)


def _holding(
    ends: np.ndarray, carrier: np.dtype | type, outers: Sequence[np.ndarray | None]
) -> quantease.Hold:
    def hold(ideal: np.ndarray) -> np.ndarray:
        parts = zip(np.split(ideal, ends), outers, strict=True)
        return np.concatenate([carried(part, carrier, outer)[0] for part, outer in parts])

    return hold


def _side_by_side(weights: Sequence[np.ndarray], parts: Sequence[np.ndarray]) -> np.ndarray:
    """Scales or zero points of all weights, float32 [groups, N]; one group if there are no
    blocks."""
    wide = [
        np.broadcast_to(part.astype(np.float32), (*part.shape[:-1], w.shape[1]))
        for part, w in zip(parts, weights, strict=True)
    ]
    return np.concatenate([np.atleast_2d(part) for part in wide], axis=1)
