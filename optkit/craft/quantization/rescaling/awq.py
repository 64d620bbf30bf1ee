"""AWQ: weights of large inputs get finer steps, by a factor that is folded into both operands.

Lin et al. 2023, arXiv:2306.00978, section 3.2. With f_k = mean|x_k|^alpha,

    y = x w = (x / f) (f w),      quantized: y' = (x / f) q(f w)

alpha is from a grid; the value with the least error of the output, |x (w - q(f w) / f)|^2, is used.
The division by f is folded into the node that computes x: the weight of a norm, the columns of the
product before. The clipping of the scaled weights, as in the paper, happens later with their scales
(`clipping.least_error`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optkit.craft.quantization.rescaling.factor_search import FactorChoice, least_error
from optkit.craft.quantization.rounding.rtn import round_to_nearest
from optkit.facts.precisions import NumberFormat

# of a factor and its inverse, because the FP16 weights of a producer must be able to represent it
_LIMIT = 2.0**10
_GRID = 20  # the number of values of alpha


def search(
    weights: Sequence[np.ndarray],
    rows: np.ndarray,
    fmt: NumberFormat,
    carrier: np.dtype | type,
    ties: np.ndarray | None = None,
) -> FactorChoice:
    """Factors for weights [K, N_i] that multiply one input, with sampled rows [n, K] of it.

    ties [K]: channels with the same number get the same factor.

    Raises InputRefused for weights that are not finite.
    """
    typical = np.asarray(np.abs(rows).mean(axis=0, dtype=np.float64))
    alphas = [step / _GRID for step in range(1, _GRID + 1)]

    def error(f: np.ndarray | None) -> float:
        return sum(_error(w, rows, fmt, carrier, f) for w in weights)

    return least_error([(a, factors(typical, a, ties)) for a in alphas], error)


def factors(magnitude: np.ndarray, alpha: float, ties: np.ndarray | None = None) -> np.ndarray:
    """f = mean|x|^alpha, float32 [K], normalized by the root of its largest times its smallest
    value. Inputs that are always zero get 1; channels that `ties` [K] joins get the geometric mean
    of their factors."""
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


def _error(
    w: np.ndarray,
    rows: np.ndarray,
    fmt: NumberFormat,
    carrier: np.dtype | type,
    f: np.ndarray | None,
) -> float:
    """Mean squared error of x w, summed over the outputs, with f w rounded."""
    along = np.ones((len(w), 1), np.float32) if f is None else f[:, None]
    lost = w * along
    lost -= round_to_nearest(lost, fmt, carrier).dequantize()
    lost /= along
    y = rows.astype(np.float32, copy=False) @ lost
    return float(np.einsum("ij,ij->j", y, y).sum(dtype=np.float64)) / max(len(y), 1)
