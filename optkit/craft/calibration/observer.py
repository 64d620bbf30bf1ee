"""Streaming observers of one value: each part of the data is counted once and dropped.

`Observer` collects extremes, the histogram, numbers per channel and the sample of rows. `MomentSum`
collects second moments; their memory (12 K² bytes and 2 K KiB, where K may be the size of a patch)
may need separate passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from optkit.craft.calibration.part import Data, SamplePart, by_channel, summed_axes
from optkit.craft.calibration.patches import PatchView
from optkit.ground.statistics import (
    ROWS,
    Channels,
    MissingRange,
    Moments,
    Patches,
    SampledRows,
    ValueStatistics,
    Window,
)
from optkit.ground.statistics.bins import by_value, codes_of, count_codes
from optkit.ground.statistics.sums import add_symmetric, limbs
from optkit.ground.statistics.values import NOTHING

_LAST = np.uint64(2**64 - 1)
_ROWS = 512  # from these rows one product is computed


class Observer:
    """Accumulates `ValueStatistics` (without moments). Only bins with elements take memory.

    `axis`: of the channels; None: no numbers per channel. `rows`: sample rows. `windows`: sample
    the patches of these windows too.
    """

    def __init__(self, axis: int | None, *, rows: bool, windows: Sequence[Window] = ()) -> None:
        self._axis = axis
        self._wants_rows = rows
        self._windows = windows
        self._patches: dict[Window, RowSample] = {}
        self._low, self._high = NOTHING[:2]
        self._codes, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)  # by code
        self._channels: Channels | None = None
        self._sample: RowSample | None = None
        self._excluded = 0
        self._verdict: MissingRange | None = None

    def update(self, data: Data, part: SamplePart) -> None:
        """Count the data elements of one part."""
        if self._verdict is not None or not data.x.size:
            return
        if data.verdict is not None:
            self.resume(ValueStatistics(*NOTHING, verdict=data.verdict))
            return
        self._excluded += data.excluded
        # + 0.0 turns -0.0 into 0.0, so that the sign does not depend on the order of samples
        self._low, self._high = min(self._low, data.low) + 0.0, max(self._high, data.high) + 0.0
        counts = count_codes(data.kept)
        counts[self._codes] += self._counts
        self._codes = np.flatnonzero(counts != 0)  # takes a quarter of the time of integers
        self._counts = counts[self._codes]
        if self._axis is None or data.extremes is None:
            return
        x = by_channel(data.x, self._axis)
        channels = _channels(x, data.extremes, _starts(x, data, part))
        self._channels = channels if self._channels is None else self._channels.merged(channels)
        if self._wants_rows:
            self._sample = self._sample or RowSample(x.shape[1])
            self._sample.update(_row_hashes(x, data, part), lambda numbers: _rows_at(x, numbers))
        for window in self._windows:
            view = PatchView(data, part, window)
            if window not in self._patches:
                size = window.groups * window.size(x.shape[1])
                self._patches[window] = RowSample(size)
            self._patches[window].update(view.hashes, view.rows)

    def result(self) -> ValueStatistics:
        bins, counts = by_value(self._codes, self._counts)
        rows = None if self._sample is None else self._sample.result()
        patches = {window: Patches(patch.result()) for window, patch in self._patches.items()}
        return ValueStatistics(
            self._low,
            self._high,
            bins,
            counts,
            self._channels,
            rows,
            None,
            self._excluded,
            self._verdict,
            patches,
        )

    def resume(self, value: ValueStatistics) -> None:
        """Continue from the values that `result` returned."""
        self._low, self._high, self._channels = value.low, value.high, value.channels
        self._codes, self._counts = codes_of(value.bins), value.counts
        self._excluded, self._verdict = value.excluded, value.verdict
        self._sample = None if value.rows is None else RowSample.of(value.rows)
        self._patches = {window: RowSample.of(p.rows) for window, p in value.patches.items()}


class RowSample:
    """The rows with the `ROWS` smallest hashes so far, each hash once, in the slots of one
    buffer."""

    def __init__(self, channels: int) -> None:
        self._hashes = np.full(ROWS, _LAST)  # for empty slots: larger than all hashes
        self._data = np.zeros((ROWS, channels), np.float32)

    @classmethod
    def of(cls, rows: SampledRows) -> RowSample:
        sample = cls(rows.data.shape[1])
        sample._hashes[: len(rows.hashes)] = rows.hashes
        sample._data[: len(rows.hashes)] = rows.data
        return sample

    def update(self, hashes: np.ndarray, rows: Callable[[np.ndarray], np.ndarray]) -> None:
        """Offer as many rows as there are hashes. `rows`: numbers of rows → those rows [n, K]."""
        better = np.flatnonzero(hashes < self._hashes.max())
        _, first = np.unique(np.concatenate([self._hashes, hashes[better]]), return_index=True)
        chosen = first[:ROWS]  # `first`: a hash that is already kept stays in its slot
        fresh = better[chosen[chosen >= ROWS] - ROWS]
        leaving = np.ones(ROWS, bool)
        leaving[chosen[chosen < ROWS]] = False
        slots = np.flatnonzero(leaving)[: len(fresh)]
        self._hashes[leaving] = _LAST
        self._hashes[slots] = hashes[fresh]
        self._data[slots] = rows(fresh)

    def result(self) -> SampledRows:
        order = np.argsort(self._hashes)[: int((self._hashes < _LAST).sum())]
        return SampledRows(self._hashes[order], self._data[order])


@dataclass
class ColumnSums:
    """Second moments of K columns, during the summation."""

    waiting: np.ndarray  # rows without a product yet [_ROWS, K]
    chunk: np.ndarray  # float32 sum of products within a chunk [K, K]
    total: np.ndarray  # exact sum of chunks [K, K]
    diagonal: np.ndarray  # its low part [K]
    held: int = 0  # rows in `waiting`
    count: int = 0  # rows in all

    @classmethod
    def of(cls, groups: Sequence[int], size: int) -> ColumnSums:
        return cls(
            np.empty((*groups, _ROWS, size), np.float32),
            np.zeros((*groups, size, size), np.float32),
            np.zeros((*groups, size, size)),
            np.zeros((*groups, size)),
        )

    def add(self, rows: np.ndarray) -> None:
        """Add rows [m, K], or those of groups [groups, m, K]."""
        left = rows.shape[-2]
        self.count += left
        while left:
            taken = min(_ROWS - self.held, left)
            place = slice(self.held, self.held + taken)
            self.waiting[..., place, :] = rows[..., -left:, :][..., :taken, :]
            self.held += taken
            left -= taken
            if self.held == _ROWS:
                self._multiply()

    def end_chunk(self) -> None:
        self._multiply()
        add_symmetric(self.total, self.diagonal, self.chunk)
        self.chunk[...] = 0

    def _multiply(self) -> None:
        rows = self.waiting[..., : self.held, :]
        if self.held:
            self.chunk += rows.swapaxes(-1, -2) @ rows
        self.held = 0


class MomentSum:
    """Accumulates `Moments`: float32 products of `_ROWS` rows at a time within a chunk of samples,
    then exact sums of chunks. So the numbers do not depend on the batch size."""

    def __init__(self) -> None:
        self.sums: ColumnSums | None = None
        """The state from which a later run continues; None until the first rows determine K."""

    def update(self, rows: np.ndarray) -> None:
        """Add rows [m, K], or those of groups [groups, m, K]."""
        *groups, count, size = rows.shape
        if not count:
            return
        if self.sums is None:
            self.sums = ColumnSums.of(groups, size)
        self.sums.add(rows)

    def end_chunk(self) -> None:
        """The next part belongs to another chunk of samples."""
        if self.sums is not None:
            self.sums.end_chunk()

    def result(self) -> Moments | None:
        """The moments; None if there were no rows. It ends the chunk."""
        if self.sums is None:
            return None
        self.sums.end_chunk()
        return Moments(self.sums.total, self.sums.diagonal, self.sums.count)


def rows_of(data: Data, axis: int) -> np.ndarray:
    """All rows [n, K] of a value; a view if the channels are last."""
    x = by_channel(data.x, axis)
    return x.transpose(0, 2, 1).reshape(-1, x.shape[1])


def _rows_at(x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Rows [n, K] of x [outer, K, inner], numbered outer × inner."""
    outer, inner = np.divmod(numbers, x.shape[2])
    rows: np.ndarray = x[outer, :, inner]
    return rows


def _channels(
    x: np.ndarray, extremes: tuple[np.ndarray, np.ndarray], starts: Sequence[int]
) -> Channels:
    """The figures per channel of x [outer, K, inner] with these extremes. Sums are per sample;
    `starts`: the first row of each sample."""
    rows = x.size // x.shape[1]
    x, axes = summed_axes(x)
    samples = [np.add.reduce(x[a:b], axis=axes) for a, b in pairwise([*starts, len(x)])]
    high, low = limbs(np.stack(samples))
    lowest, highest = (end + np.float32(0) for end in extremes)  # as above: -0.0 becomes 0.0
    return Channels(lowest, highest, (high.sum(axis=0), low.sum(axis=0)), rows)


def _starts(x: np.ndarray, data: Data, part: SamplePart) -> list[int]:
    """The indices in x [outer, K, inner] at which the samples begin; [0] if the rows do not divide
    by the samples."""
    places = np.arange(data.length) if data.places is None else data.places
    if data.length % part.samples or len(x) % len(places):
        return [0]
    samples = places // (data.length // part.samples)
    first = np.flatnonzero(np.diff(samples, prepend=-1)) * (len(x) // len(places))
    starts: list[int] = first.tolist()
    return starts


def _row_hashes(x: np.ndarray, data: Data, part: SamplePart) -> np.ndarray:
    """Hashes of the rows of x [outer, K, inner]. Rows of padding have numbers too."""
    outer, _, inner = x.shape
    if data.places is None:
        return part.hashes(outer * inner)
    each = outer * inner // len(data.places)  # rows per token
    hashes: np.ndarray = part.hashes(data.length * each).reshape(-1, each)[data.places].reshape(-1)
    return hashes
