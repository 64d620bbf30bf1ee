"""Bins from the bits of floats: their edges do not depend on data, and their counts are integers.

A bin is the upper 16 bits of the float32 (sign, exponent, top 7 bits of the mantissa): a relative
width of 1/128 at every magnitude. Merging adds integers, so every order and split gives the same
counts.

    ordinal  0x0000 ........ 0x7FFF | 0x8000 ........ 0xFFFF     bins sorted by value
    value      -max ........ -0     |     +0 ........ +max
"""

from __future__ import annotations

import numpy as np

BINS = 1 << 16

# ordinal -> upper bits of the float (negatives fall as their magnitude rises), and back
_CODES = np.concatenate([np.arange(BINS - 1, BINS // 2 - 1, -1), np.arange(BINS // 2)])
_ORDINALS = np.argsort(_CODES)
_CHUNK = 1 << 20


def count_codes(x: np.ndarray) -> np.ndarray:
    """Elements per code (upper 16 bits), int64 [BINS]: not yet in the order of values."""
    halves = np.ascontiguousarray(x, "<f4").reshape(-1).view("<u2")
    codes = halves[1::2]  # a view takes less time than a shift of the whole numbers
    counts = np.bincount(codes[:_CHUNK], minlength=BINS)
    for start in range(_CHUNK, codes.size, _CHUNK):  # widened to 64 bits in there: 8 MiB at most
        counts += np.bincount(codes[start : start + _CHUNK], minlength=BINS)
    return counts


def count_bins(x: np.ndarray) -> np.ndarray:
    """Elements per bin, int64 [BINS] by ordinal. `x`: finite floats of any shape and width."""
    by_value: np.ndarray = count_codes(x)[_CODES]
    return by_value


def by_value(codes: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(ordinals uint16 [k] rising, their counts) of codes [k] and counts [k]."""
    ordinals = _ORDINALS[codes]
    order = np.argsort(ordinals)
    return ordinals[order].astype(np.uint16), counts[order]


def codes_of(ordinals: np.ndarray) -> np.ndarray:
    """Codes (int64) of ordinals: the inverse of what `by_value` does to them."""
    codes: np.ndarray = _CODES[ordinals]
    return codes


def edges(ordinal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper) float64 edges of bins: the values of a bin are between them, both ends
    included."""
    code = _CODES[ordinal].astype(np.uint32)
    near = (code << 16).view(np.float32).astype(np.float64)  # the edge on zero's side
    far = (code << 16 | 0xFFFF).view(np.float32).astype(np.float64)
    return np.minimum(near, far), np.maximum(near, far)


def add_bins(
    bins: np.ndarray, counts: np.ndarray, more_bins: np.ndarray, more_counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The union of two sparse histograms, counts added."""
    union, place = np.unique(np.concatenate([bins, more_bins]), return_inverse=True)
    total = np.zeros(union.size, np.int64)
    np.add.at(total, place, np.concatenate([counts, more_counts]))
    return union, total
