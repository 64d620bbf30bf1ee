"""Tiles cover a weight once, in whole ranges."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.quantization.numerics.tiles import span, tiles


@settings(deadline=None)
@given(
    st.integers(0, 700), st.integers(0, 700), st.sampled_from([1, 7, 16, 32, 128]), st.booleans()
)
def test_every_number_is_in_one_tile(k: int, n: int, size: int, turned: bool) -> None:
    w = np.arange(k * n, dtype=np.float32).reshape((n, k)).T
    w = w if turned else np.ascontiguousarray(w)
    seen = np.zeros((k, n), int)
    for tile in tiles(w, size):
        piece = tile.read(w)
        assert piece.shape == (tile.groups.stop - tile.groups.start, tile.depth, piece.shape[2])
        assert tile.rows.start == tile.groups.start * size  # ranges begin where scales do
        assert tile.depth == size or (tile.depth == k % size and tile.rows.stop == k)
        assert piece.base is None or not np.shares_memory(piece, w)
        assert np.array_equal(piece.reshape(-1, piece.shape[2]), w[tile.rows, tile.columns])
        seen[tile.rows, tile.columns] += 1
    assert (seen == 1).all()


def test_a_tile_is_small_whatever_the_weight() -> None:
    for shape, size in (((4096, 11008), 32), ((11008, 4096), 128), ((200000, 64), 16)):
        for w in (np.empty(shape, np.float16), np.empty(shape[::-1], np.float16).T):
            sizes = [(t.rows.stop - t.rows.start) * (t.columns.stop - t.columns.start)
                     for t in tiles(w, size)]  # fmt: skip
            assert max(sizes) <= 1 << 17 and sum(sizes) == w.size


def test_a_span_is_a_block_or_everything() -> None:
    assert [span(None, 50), span(16, 50), span(64, 50), span(None, 0)] == [50, 16, 50, 1]
