"""Sums over one output of two sessions, from which every figure of its fidelity follows.

    signal Σ r²   noise Σ (r-c)²   power Σ c²   dot Σ r·c   mean Σ r   other Σ c
    count, zeros (of r), equal (r = c, of integers)          most max |r-c|   low min r   high max r

A row of the sums is one sample, or one batch if an output does not have one row per sample. The
sums are taken over the whole output, and for each index of an axis that may count channels: an axis
after the first one whose size the graph fixes. An axis of a free size counts tokens, boxes or
pixels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optkit.facts.tensors import Feed, TensorInfo

SUMS = ("signal", "noise", "power", "dot", "mean", "other", "count", "zeros", "equal")
_FIELDS = (*SUMS, "most", "low", "high")
_LARGEST = 1024
"""The most channels: longer axes (classes of words, pixels) are not looked at one by one."""


@dataclass(frozen=True)
class Layout:
    """The columns of one output: the sums of the whole output, and of each axis (number, size). An
    output that is not `judged`, integers beside floats, only has `count` and `equal`. `exact`: it
    has integers or bools; `rank`: the number of its axes; `state`: the next run reads it."""

    output: str
    judged: bool
    exact: bool
    rank: int
    state: bool
    axes: tuple[tuple[int, int], ...] = ()

    @property
    def width(self) -> int:
        sizes = (1, *(size for _, size in self.axes))
        return len(_FIELDS) * sum(sizes) if self.judged else 2

    def blocks(self, rows: np.ndarray) -> Iterator[tuple[int | None, np.ndarray]]:
        """(axis, its columns [rows, fields, channels]) of the rows [rows, width] of a judged
        output, in place; None for the whole output."""
        start = 0
        for axis, size in ((None, 1), *self.axes):
            stop = start + len(_FIELDS) * size
            yield axis, rows[:, start:stop].reshape(len(rows), len(_FIELDS), size)
            start = stop


def layouts(
    expected: Feed, actual: Feed, infos: Collection[TensorInfo], states: Collection[str]
) -> tuple[Layout, ...]:
    """The columns of all outputs, from their first batch and what the graph says of them. `states`:
    the caches of a decoder.

    Judged are floats, or all outputs if the reference has no floats: a distance of two indices
    means nothing. A cache of floats that the candidate stores as codes has no columns.
    """
    declared = {info.name: info.shape for info in infos}
    codes = {name for name in actual if actual[name].dtype.kind in "iu"}
    floats = {name for name, values in expected.items() if values.dtype.kind == "f"}
    found = []
    for name, values in expected.items():
        if name in floats & codes:
            continue
        own, state = name in floats, name in states
        axes = tuple(_fixed(values.shape, declared.get(name, ()))) if own and not state else ()
        found.append(Layout(name, own or not floats - codes, not own, values.ndim, state, axes))
    return tuple(found)


def _fixed(shape: Sequence[int], declared: Sequence[int | str]) -> Iterator[tuple[int, int]]:
    for axis, (size, said) in enumerate(zip(shape, declared, strict=False)):
        if axis and size == said and 1 < size <= _LARGEST:
            yield axis, size


@dataclass(frozen=True)
class Totals:
    """The sums of some channels over all rows, float64 [channels] each."""

    signal: np.ndarray
    noise: np.ndarray
    power: np.ndarray
    dot: np.ndarray
    mean: np.ndarray
    other: np.ndarray
    count: np.ndarray
    zeros: np.ndarray
    equal: np.ndarray
    most: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, block: np.ndarray) -> Totals:
        """Of the columns [rows, fields, channels] of one axis."""
        last = len(SUMS)
        most, low, high = (block[:, at] for at in range(last, last + 3))
        return cls(
            **dict(zip(SUMS, block[:, :last].sum(axis=0), strict=True)),
            most=most.max(axis=0, initial=0.0),
            low=low.min(axis=0, initial=np.inf),
            high=high.max(axis=0, initial=-np.inf),
        )


def fill(layout: Layout, rows: np.ndarray, r: np.ndarray, c: np.ndarray, seen: np.ndarray) -> None:
    """Write the sums of a judged output into its columns, zeros [rows, width].

    r, c: float64 [rows, 1 or the batch, …] with zeros where `seen` (bool, of the same shape) is
    False: padding, and values that are not finite on both sides. Axis k of the output is axis k + 1
    here. An axis of another size than in the layout gets NaN.
    """
    error, product = np.empty(r.shape[1:]), np.empty(r.shape[1:])  # new pages take time
    for index in range(len(rows)):
        one = slice(index, index + 1)
        _fill(layout, rows[one], r[index], c[index], seen[index], error, product)


def _fill(
    layout: Layout,
    row: np.ndarray,
    r: np.ndarray,
    c: np.ndarray,
    seen: np.ndarray,
    error: np.ndarray,
    product: np.ndarray,
) -> None:
    """The columns [1, width] of one row; axis k of the output is axis k of r. `error` and
    `product`: memory of the shape of r."""
    np.subtract(r, c, out=error)
    blocks: list[tuple[np.ndarray, tuple[int, ...]]] = []
    for axis, block in layout.blocks(row):
        if axis is not None and r.shape[axis] != block.shape[2]:
            block[:] = np.nan
        else:
            blocks.append((block[0], tuple(set(range(r.ndim)) - {axis})))
    for field, pair in enumerate(((r, r), (error, error), (c, c), (r, c))):
        np.multiply(*pair, out=product)
        for block, over in blocks:
            block[field] = product.sum(axis=over)
    np.abs(error, out=product)
    equal = seen & (r == c) if layout.exact else np.zeros_like(seen)
    zeros, last = seen & (r == 0), len(SUMS)
    for block, over in blocks:
        block[4], block[5] = r.sum(axis=over), c.sum(axis=over)
        for field, flags in enumerate((seen, zeros, equal), 6):
            block[field] = np.count_nonzero(flags, axis=over)
        block[last] = product.max(axis=over, initial=0.0)
        block[last + 1] = r.min(axis=over, initial=np.inf, where=seen)
        block[last + 2] = r.max(axis=over, initial=-np.inf, where=seen)
