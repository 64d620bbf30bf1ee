"""AWQ: weights of inputs that are large get finer steps, by a factor folded into both sides.

Lin et al. 2023, arXiv:2306.00978, section 3.2. With f_k = mean|x_k|^alpha,

    y = x w = (x / f) (f w),      quantized: y' = (x / f) q(f w)

alpha from a grid by the error of the output, |x (w - q(f w) / f)|^2. The division by f belongs to
whatever produces x: the weight of a norm, the columns of the product before. The paper's clipping
of the scaled weights comes later, with their scales (`clipping.least_error`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optkit.precisions import NumberFormat
from optkit.quantization.rescaling import search as searching
from optkit.quantization.rescaling.search import Choice
from optkit.quantization.rounding.rtn import round_to_nearest

_LIMIT = 2.0**10  # of a factor and its inverse: a producer's FP16 weights must hold it
_GRID = 20  # values of alpha


def search(
    weights: Sequence[np.ndarray],
    rows: np.ndarray,
    fmt: NumberFormat,
    carrier: np.dtype | type,
    ties: np.ndarray | None = None,
) -> Choice:
    """Factors for weights [K, N_i] that multiply one input, of which `rows` [n, K] are known.

    `ties` [K]: channels with the same number get the same factor. Raises InputRefused for weights
    that are not finite.
    """
    typical = np.asarray(np.abs(rows).mean(axis=0, dtype=np.float64))
    alphas = [step / _GRID for step in range(1, _GRID + 1)]

    def error(f: np.ndarray | None) -> float:
        return sum(_error(w, rows, fmt, carrier, f) for w in weights)

    return searching.search([(a, factors(typical, a, ties)) for a in alphas], error)


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


def _error(
    w: np.ndarray,
    rows: np.ndarray,
    fmt: NumberFormat,
    carrier: np.dtype | type,
    f: np.ndarray | None,
) -> float:
    """Mean squared error of x w, summed over the outputs, where f w is rounded."""
    along = np.ones((len(w), 1), np.float32) if f is None else f[:, None]
    lost = w * along
    lost -= round_to_nearest(lost, fmt, carrier).dequantize()
    lost /= along
    y = rows.astype(np.float32, copy=False) @ lost
    return float(np.einsum("ij,ij->j", y, y).sum(dtype=np.float64)) / max(len(y), 1)
