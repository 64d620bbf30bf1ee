"""Sums of floats that do not depend on the order of their terms.

Each term is cut in two at a fixed place, and both parts are rounded to a fixed grid:

    t = hi + lo,    hi = rint(2⁴ t) / 2⁴,    lo = rint(2⁴⁶ (t - hi)) / 2⁴⁶

Sums of multiples of 2⁻⁴ are exact in float64 below 2⁴⁹, sums of the low parts for 2¹² terms, so
adding is associative, as with integers: the binned sums of Demmel and Nguyen ("Fast reproducible
floating-point summation", ARITH 2013) with bins that fit squares of activations. Past those limits
a sum is as good as any in float64, but its last bits depend on the order.
"""

from __future__ import annotations

import numpy as np

_HIGH, _LOW = 2.0**4, 2.0**46
_BLOCK = 1 << 17  # elements cut at a time: the temporaries stay in the cache


def limbs(term: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(hi, lo), float64, of finite terms of any shape."""
    wide = term.astype(np.float64)
    high = np.rint(wide * _HIGH) / _HIGH
    low = np.rint((wide - high) * _LOW) / _LOW
    return high, low


def add_symmetric(total: np.ndarray, diagonal: np.ndarray, term: np.ndarray) -> None:
    """Add a symmetric matrix `term` [K, K] (up to rounding) to a packed sum, in place.

    A packed sum holds the high parts on and above the diagonal of `total` (float64 [K, K]), the low
    parts below it and, of the diagonal itself, in `diagonal` (float64 [K]).
    """
    size = len(diagonal)
    columns = np.arange(size)
    step = max(_BLOCK // max(size, 1), 1)
    for start in range(0, size, step):
        rows = columns[start : start + step]
        # the mean with its mirror image: both parts of an element must come from one number
        high, low = limbs((term[start : start + step] + term[:, start : start + step].T) / 2)
        diagonal[rows] += low[rows - start, rows]
        total[start : start + step] += np.where(columns >= rows[:, None], high, low)


def unpacked(total: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    """The sum itself, float64 [K, K], of a packed one."""
    upper = np.triu(total)
    upper += np.tril(total, -1).T
    full: np.ndarray = upper + np.triu(upper, 1).T
    full[np.diag_indices_from(full)] += diagonal
    return full
