"""Which axes differ between batches, and what is read of a loader to know it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from optkit.road.jobs import batches
from optkit.road.jobs.padded_axes import PaddedAxis, padded_axes


def test_axes_of_the_same_sizes_are_one_axis() -> None:
    found = padded_axes([
        {"ids": (2, 7), "mask": (2, 7), "image": (2, 3, 5, 5), "flag": ()},
        {"ids": (4, 9), "mask": (4, 9), "image": (4, 3, 5, 6), "flag": ()},
        {"ids": (1, 4), "mask": (1, 4), "image": (1, 3, 5, 5), "flag": ()},
    ])  # fmt: skip
    assert found == [
        PaddedAxis("length", (("ids", 1), ("mask", 1)), (7, 9, 4)),
        PaddedAxis("length_2", (("image", 3),), (5, 6, 5)),
    ]
    assert found[0].range == {"min": 4, "opt": 7, "max": 9}
    assert found[0].note.startswith("axis 1 of ids, axis 1 of mask: the size differs")


def test_what_cannot_be_compared_is_no_axis() -> None:
    """Another number of axes, and a missing input, are refused when the batches are read."""
    assert padded_axes([{"x": (2, 7), "y": (2, 3)}, {"x": (2, 7, 1)}]) == []
    assert padded_axes([{"x": (2, 7)}]) == []


def test_a_loader_is_read_once_and_no_further_than_needed() -> None:
    read = 0

    def loader() -> Iterator[Any]:
        nonlocal read
        for size in (3, 4, 5):
            read += 1
            yield {"x": np.zeros((4, size)), "boxes": [[1, 2], [3]], "name": "a"}

    given = batches.Loader(loader())
    first = given.peek(8)
    assert read == 2
    assert [batches.shapes(batch, ["x"]) for batch in first] == [{"x": (4, 3)}, {"x": (4, 4)}]
    assert len(list(given.batches or ())) == 3


def test_a_loader_of_large_batches_is_not_held_in_memory() -> None:
    large = np.broadcast_to(np.float32(0), (1, 20 << 20))
    given = batches.Loader(iter([large, large, large]))
    assert len(given.peek(None)) == 1 and len(list(given.batches or ())) == 3
