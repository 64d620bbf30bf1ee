"""AWQ: weights of inputs that are large get finer steps, by a factor folded into both sides.

Lin et al. 2023, arXiv:2306.00978, section 3.2. With f_k = mean|x_k|^alpha,

    y = x w = (x / f) (f w),      quantized: y' = (x / f) q(f w)

alpha from a grid by the error of the output, |x (w - q(f w) / f)|^2; then the ranges of the scaled
weights are clipped where that lowers the error of a block (`clipping.least_error`). The division by
f belongs to whatever produces x: the weight of a norm, the columns of the product before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optkit.errors import InputRefused
from optkit.precisions import NumberFormat
from optkit.quantization.rounding.gptq import output_error
from optkit.quantization.rounding.rtn import Quantized, round_to_nearest

_LIMIT = 2.0**10  # of a factor and its inverse: a producer's FP16 weights must hold it


class Awq(NamedTuple):
    """What the search found.

    factors: float32 [K]: the weights' rows were multiplied by it, the producer's output is to be
    divided by it. quantized: of f w, each with its error. error, plain_error: mean squared error of
    the outputs, summed, as found and with all factors 1 and no clipping.
    """

    factors: np.ndarray
    alpha: float
    quantized: list[Quantized]
    error: float
    plain_error: float


@dataclass(frozen=True)
class _Inputs:
    """What is known of x: a sample of its rows [n, K], or its second moments [K, K]."""

    rows: np.ndarray | None
    moments: np.ndarray | None

    @property
    def magnitude(self) -> np.ndarray:
        """mean|x|, float64 [K]; of moments alone their root, the same but for a factor where the
        inputs' distributions are alike."""
        if self.rows is not None:
            return np.asarray(np.abs(self.rows).mean(axis=0, dtype=np.float64))
        assert self.moments is not None
        return np.sqrt(np.maximum(self.moments.diagonal().astype(np.float64), 0.0))

    def error(self, difference: np.ndarray) -> float:
        """Mean squared error of x @ w summed over outputs, for w off by `difference` [K, N]."""
        if self.moments is not None and (self.rows is None or len(self.rows) > len(self.moments)):
            return output_error(difference, self.moments)
        assert self.rows is not None
        y = self.rows.astype(np.float32, copy=False) @ difference
        return float(np.einsum("ij,ij->j", y, y).sum(dtype=np.float64)) / max(len(y), 1)

    def importance(self, factors: np.ndarray) -> np.ndarray:
        """Second moments of x / f, [K, K] or their diagonal."""
        if self.moments is not None:
            return self.moments / np.outer(factors, factors)
        assert self.rows is not None
        return np.asarray(np.square(self.rows / factors).mean(axis=0))


def awq(
    weights: Sequence[np.ndarray],
    fmt: NumberFormat,
    carrier: np.dtype | type,
    *,
    rows: np.ndarray | None = None,
    moments: np.ndarray | None = None,
    magnitude: np.ndarray | None = None,
    ties: np.ndarray | None = None,
    grid: int = 20,
    clip: bool = True,
) -> Awq:
    """Search factors for weights [K, N_i] that multiply one input, and quantize them.

    rows [n, K] of that input, or its moments X^T X / n [K, K], or both (the cheaper one measures
    errors); magnitude: mean|x| [K] where it is known of more samples; ties [K]: channels with the
    same number get the same factor. `grid` values of alpha from 0 to 1 are tried; where none beats
    0 the factors are 1. Raises InputRefused without data and for weights that are not finite.
    """
    if rows is None and moments is None:
        raise InputRefused("AWQ needs rows or second moments of the input")
    inputs = _Inputs(rows, moments)
    typical = inputs.magnitude if magnitude is None else magnitude

    def attempt(f: np.ndarray, clipped: bool) -> list[Quantized]:
        importance = inputs.importance(f) if clipped else None
        found = []
        for w in weights:
            scaled = w * f[:, None]
            q = round_to_nearest(
                scaled, fmt, carrier, search="mse" if clipped else "absmax", importance=importance
            )
            scaled -= q.dequantize()
            scaled /= f[:, None]
            found.append(q._replace(error=inputs.error(scaled)))
        return found

    best = factors(typical, 0.0)
    quantized, alpha = attempt(best, False), 0.0
    plain = error = _total(quantized)
    for step in range(1, grid + 1):
        f = factors(typical, step / grid, ties)
        found = attempt(f, False)
        if _total(found) < error:
            best, quantized, error, alpha = f, found, _total(found), step / grid
    if clip:
        found = attempt(best, True)
        if _total(found) < error:
            quantized, error = found, _total(found)
    return Awq(best, alpha, quantized, error, plain)


def factors(magnitude: np.ndarray, alpha: float, ties: np.ndarray | None = None) -> np.ndarray:
    """f = mean|x|^alpha, float32 [K], about 1 in the middle of its range: divided by the root of
    its largest times its smallest. Inputs that are always zero get 1; those that `ties` [K] joins
    the geometric mean of theirs."""
    live = np.isfinite(magnitude) & (magnitude > 0)
    f = np.ones(len(magnitude))
    if not live.any() or alpha == 0.0:
        return f.astype(np.float32)
    f[live] = magnitude[live].astype(np.float64) ** alpha
    f[live] /= np.sqrt(f[live].max() * f[live].min())
    f = np.clip(f, 1 / _LIMIT, _LIMIT)
    if ties is not None:
        _, place = np.unique(ties, return_inverse=True)
        f = np.exp(np.bincount(place, np.log(f)) / np.bincount(place))[place]
    return f.astype(np.float32)


def _total(found: Sequence[Quantized]) -> float:
    return sum(q.error or 0.0 for q in found)
