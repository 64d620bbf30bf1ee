"""Sums of floats that do not depend on the order of their terms.

Each term is split at a fixed place, and both parts are rounded to a fixed grid:

    t = hi + lo,    hi = rint(2⁴ t) / 2⁴,    lo = rint(2⁴⁶ (t - hi)) / 2⁴⁶

Sums of multiples of 2⁻⁴ are exact in float64 below 2⁴⁹, and sums of the low parts for 2¹² terms, so
the addition is associative, as with integers. These are the binned sums of Demmel and Nguyen ("Fast
reproducible floating-point summation", ARITH 2013), with bins for squares of activations. Beyond
these limits a sum has the usual accuracy of float64, but its last bits depend on the order.
"""

from __future__ import annotations

import numpy as np

_HIGH, _LOW = 2.0**4, 2.0**46
FINEST = 1 / _LOW
"""The distance of neighbouring numbers of the finer grid."""
_BLOCK = 1 << 17  # elements cut at a time: the temporaries stay in the cache


def limbs(term: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(hi, lo), float64, of finite terms of any shape."""
    low = term.astype(np.float64)
    high = low * _HIGH
    np.rint(high, out=high)
    high /= _HIGH
    low -= high
    low *= _LOW
    np.rint(low, out=low)
    low /= _LOW
    return high, low


def add_symmetric(total: np.ndarray, diagonal: np.ndarray, term: np.ndarray) -> None:
    """Add a symmetric matrix `term` [K, K] (up to rounding), or several [groups, K, K], to a packed
    sum, in place.

    A packed sum stores the high parts on and above the diagonal of `total` (float64 [K, K]), the
    low parts below it, and the low parts of the diagonal in `diagonal` (float64 [K]).
    """
    size = diagonal.shape[-1]
    step = max(_BLOCK // max(diagonal.size, 1), 1)
    for start in range(0, size, step):
        stop = min(start + step, size)
        square, beyond = slice(start, stop), slice(stop, size)
        # the mean with its mirror image: both parts of an element must come from one number
        mirror = term[..., start:, square].swapaxes(-1, -2)
        high, low = limbs((term[..., square, start:] + mirror) / 2)
        width = stop - start
        total[..., square, beyond] += high[..., width:]
        total[..., beyond, square] += low[..., width:].swapaxes(-1, -2)
        total[..., square, square] += np.triu(high[..., :width]) + np.tril(low[..., :width], -1)
        diagonal[..., square] += np.einsum("...kk->...k", low[..., :width])


def unpacked(total: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    """The sum itself, float64 and of the same shape, of a packed one."""
    upper = np.triu(total)
    upper += np.tril(total, -1).swapaxes(-1, -2)
    full: np.ndarray = upper + np.triu(upper, 1).swapaxes(-1, -2)
    np.einsum("...kk->...k", full)[...] += diagonal
    return full
