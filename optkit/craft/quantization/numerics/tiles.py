"""A weight [K, N] in pieces whose float32 copies fit in the cache of a core.

A piece has complete ranges of `span` rows (a block; K for channels), so each piece can be quantized
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_NUMBERS = 1 << 17
_NARROW = 64  # columns: at least a cache line of every row, in any dtype


class Tile(NamedTuple):
    """`rows` x `columns`: several ranges of `depth` rows each; `groups` are their indices in a
    scale."""

    rows: slice
    columns: slice
    groups: slice
    depth: int

    def read(self, w: np.ndarray) -> np.ndarray:
        """This piece of w as a float32 copy [groups, depth, columns]."""
        piece = w[self.rows, self.columns].astype(np.float32, order="C")
        return piece.reshape(-1, self.depth, piece.shape[1])


def tiles(w: np.ndarray, span: int) -> Iterator[Tile]:
    """Tiles that cover w [K, N]; a last range shorter than `span` gets its own tiles."""
    k, n = w.shape
    if k == 0 or n == 0:
        return
    whole = k - k % span
    width = max(min(n, _NUMBERS // span), _NARROW)
    if abs(w.strides[0]) < abs(w.strides[1]):  # columns of a tile are contiguous in memory
        width = min(width, _NARROW)
    height = max(_NUMBERS // (span * width), 1) * span
    for start, stop, depth in ((0, whole, span), (whole, k, k - whole)):
        for row in range(start, stop, height):
            rows = slice(row, min(row + height, stop))
            groups = slice(rows.start // span, -(-rows.stop // span))
            for column in range(0, n, width):
                yield Tile(rows, slice(column, min(column + width, n)), groups, depth)


def span(block_size: int | None, k: int) -> int:
    """The number of rows under one scale: those of a block, but at most all."""
    return min(block_size or k, k) or 1
