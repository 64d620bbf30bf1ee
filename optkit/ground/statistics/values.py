"""The statistics of one value, and the merge of two of them.

They always have the extremes and a histogram. If a `Tap` requests it, they also have numbers per
channel of the axis over which weights sum (K channels), a sample of rows x [n, K], and the second
moments E[xᵀx] [K, K]; for the inputs of convolutions also rows and moments of their patches
(`windows`).

Nothing depends on the split, the order or the batches of the samples: shards merge to the bits of a
single run, if the forward pass gives the same bits. For moments, shards must end at multiples of
`CHUNK` samples: moments are exact sums of float32 products within chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np

from optkit.facts.errors import OptkitError
from optkit.ground.statistics.bins import add_bins, by_value, count_codes, edges
from optkit.ground.statistics.sums import FINEST, unpacked
from optkit.ground.statistics.windows import Window

ROWS = 512  # rows that a sample holds at most
CHUNK = 32  # samples whose products are summed in float32

# Of one sample at most: neighbouring patches share most of their numbers, so they say little new,
# while each costs K² products (a map of 56 x 56 has 3,136 of them). Of 256 samples 64 patches each
# instead of 16 gained 0.1 dB in the weights of a residual CNN.
PATCHES = 16


def of_expert(name: str, expert: int) -> str:
    """The name under which the rows of a value that one expert reads have statistics."""
    return f"{name}[{expert}]"


@dataclass(frozen=True)
class Tap:
    """What to observe of the value `name`.

    `channel_axis`: the axis over which weights sum (-1 for MatMul and Gemm, 1 for Conv); None: no
    numbers per channel, no rows and no moments. `windows`: those of the convolutions that read the
    value; the moments are then those of patches. `chosen`: the value that has the expert of each
    row, one of `experts`: then the rows of each expert are observed apart (`of_expert`).
    """

    name: str
    channel_axis: int | None = None
    rows: bool = False
    moments: bool = False
    windows: tuple[Window, ...] = ()
    chosen: str | None = None
    experts: int = 0

    @property
    def outputs(self) -> tuple[str, ...]:
        """The values that must be outputs."""
        return (self.name,) if self.chosen is None else (self.name, self.chosen)

    def __post_init__(self) -> None:
        if self.channel_axis is None and (self.rows or self.moments or self.windows):
            raise OptkitError("rows and moments need a channel axis", where=f"tap {self.name!r}")


def merged_taps(taps: Iterable[Tap]) -> list[Tap]:
    """One tap per value with everything that its taps request. If the taps have different channel
    axes (a convolution and a matrix product read one value), the result has nothing per channel."""
    by_name: dict[str, list[Tap]] = {}
    for tap in taps:
        by_name.setdefault(tap.name, []).append(tap)
    return [_merged(name, taps_of_name) for name, taps_of_name in by_name.items()]


class MissingRange(NamedTuple):
    """Why a value has no range: the first cause, and its sample; None: it was not observed."""

    sample: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.sample is None else f"{self.what} in sample {self.sample}"


@dataclass(frozen=True, eq=False)
class Channels:
    """Extremes (float32 [K]) and sums (two float64 [K], see `sums`) of `count` rows per channel."""

    low: np.ndarray
    high: np.ndarray
    sums: tuple[np.ndarray, np.ndarray]
    count: int

    @property
    def mean(self) -> np.ndarray:
        """float64 [K]."""
        mean: np.ndarray = (self.sums[0] + self.sums[1]) / max(self.count, 1)
        return mean

    @property
    def absmax(self) -> np.ndarray:
        """Largest magnitude, float32 [K]; 0 where nothing was seen."""
        largest: np.ndarray = np.maximum(np.maximum(-self.low, self.high), np.float32(0))
        return largest

    def scaled(self, s: np.ndarray) -> Channels:
        low, high = (np.asarray(a / s, np.float32) for a in (self.low, self.high))
        return Channels(low, high, (self.sums[0] / s, self.sums[1] / s), self.count)

    def merged(self, other: Channels) -> Channels:
        sums = (self.sums[0] + other.sums[0], self.sums[1] + other.sums[1])
        return Channels(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            sums,
            self.count + other.count,
        )


@dataclass(frozen=True, eq=False)
class SampledRows:
    """The rows with the smallest hashes (uint64 [n], rising, each once), and their numbers (float32
    [n, K]): a uniform sample without replacement of all rows (bottom-k sketch, Cohen and Kelley,
    "Summarizing data using bottom-k sketches", PODC 2007). The hash is computed from the digest of
    the sample and the index of the row in it, so the choice does not depend on the numbers."""

    hashes: np.ndarray
    data: np.ndarray

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.data)

    def scaled(self, s: np.ndarray) -> SampledRows:
        return SampledRows(self.hashes, np.asarray(self.data / s, np.float32))

    def merged(self, other: SampledRows) -> SampledRows:
        hashes, first = np.unique(np.concatenate([self.hashes, other.hashes]), return_index=True)
        data = np.concatenate([self.data, other.data])
        return SampledRows(hashes[:ROWS], data[first[:ROWS]])


@dataclass(frozen=True, eq=False)
class Moments:
    """Σ xᵀx over `count` rows, packed (see `sums.add_symmetric`): `total` float64 [K, K] and
    `diagonal` float64 [K]; of patches in groups [groups, K, K] and [groups, K]. The arrays may be
    mapped from a file."""

    total: np.ndarray
    diagonal: np.ndarray
    count: int

    def matrix(self) -> np.ndarray:
        """E[xᵀx], float64 in the shape of `total`, symmetric; computed at each call. Inputs so
        small that the grid of the sums leaves only rounding of their squares count as zero."""
        sums = unpacked(self.total, self.diagonal)
        size = sums.shape[-1]
        lost = np.einsum("...kk->...k", sums) < size * FINEST
        if lost.any():
            sums[lost[..., :, None] | lost[..., None, :]] = 0
        return sums / max(self.count, 1)

    def scaled(self, s: np.ndarray) -> Moments:
        return Moments(
            self.total / (s[..., :, None] * s[..., None, :]), self.diagonal / s**2, self.count
        )

    def merged(self, other: Moments) -> Moments:
        return Moments(
            self.total + other.total, self.diagonal + other.diagonal, self.count + other.count
        )


@dataclass(frozen=True, eq=False)
class Patches:
    """What one window shows of a value: a sample of patches (`SampledRows`, float32
    [n, groups · K]), and their second moments in each group. Moments include at most `PATCHES`
    patches per sample."""

    rows: SampledRows
    moments: Moments | None = None

    def scaled(self, s: np.ndarray, window: Window) -> Patches:
        each = np.repeat(s, window.taps)
        moments = self.moments and self.moments.scaled(each.reshape(window.groups, -1))
        return Patches(self.rows.scaled(each), moments)

    def merged(self, other: Patches) -> Patches:
        moments = self.moments and other.moments and self.moments.merged(other.moments)
        return Patches(self.rows.merged(other.rows), moments)


@dataclass(frozen=True, eq=False)
class ValueStatistics:
    """The statistics of one value over all samples: exact extremes (float32), a sparse histogram,
    and what its tap requests.

    `bins` are ordinals in rising order (uint16 [k]), `counts` their counts (int64 [k], all > 0).
    `excluded`: number of elements that are not data (fills of a mask, and infinities from them); no
    other number includes them (per channel, in rows and in moments they count as zero). A value
    with a `verdict` has no other field; the extremes of zero elements are inf and -inf. `given`:
    the extremes are a range that another tool has chosen, and no method changes it.
    """

    low: float
    high: float
    bins: np.ndarray
    counts: np.ndarray
    channels: Channels | None = None
    rows: SampledRows | None = None
    moments: Moments | None = None
    excluded: int = 0
    verdict: MissingRange | None = None
    patches: Mapping[Window, Patches] = field(default_factory=dict)
    given: bool = False

    @property
    def count(self) -> int:
        """Number of elements seen."""
        return int(self.counts.sum())

    @property
    def unbounded(self) -> str | None:
        """Why the value has no range; None if it has one."""
        if self.verdict is not None:
            return str(self.verdict)
        if self.bins.size:
            return None
        return "nothing but fills of a mask" if self.excluded else "no elements"

    def fraction_outside(self, low: float, high: float) -> float:
        """Share of elements whose bin is completely outside [low, high]: the share that this range
        would clip."""
        lower, upper = edges(self.bins)
        outside = (np.maximum(lower, self.low) > high) | (np.minimum(upper, self.high) < low)
        return int(self.counts[outside].sum()) / max(self.count, 1)

    def scaled(self, s: np.ndarray) -> Self:
        """The statistics of x / s, with s > 0 [K], one number per channel (inf: it becomes zero).

        Numbers per channel, rows, moments and extremes are exact up to rounding. The histogram is
        computed from the scaled rows, so it assumes that all elements are like the sample. An
        unbounded value does not change.

        Raises OptkitError without channels and rows.
        """
        if self.unbounded is not None:
            return self
        if self.channels is None or self.rows is None:
            raise OptkitError("only a value with channels and rows can be scaled")
        channels, rows = self.channels.scaled(s), self.rows.scaled(s)
        low, high = float(channels.low.min()), float(channels.high.max())
        bins, counts = _spread(rows.data, low, high, self.count)
        moments = None if self.moments is None else self.moments.scaled(s)
        patches = {window: patch.scaled(s, window) for window, patch in self.patches.items()}
        return replace(
            self,
            low=low,
            high=high,
            bins=bins,
            counts=counts,
            channels=channels,
            rows=rows,
            moments=moments,
            patches=patches,
        )

    def merged(self, other: Self) -> Self:
        """The statistics of both together. Optional parts that one side lacks are dropped."""
        verdicts = [side.verdict for side in (self, other) if side.verdict is not None]
        if verdicts:
            return type(self)(*NOTHING, verdict=min(verdicts))
        for side, rest in ((self, other), (other, self)):
            if not side.bins.size and not side.excluded:
                return rest
        bins, counts = add_bins(self.bins, self.counts, other.bins, other.counts)
        return type(self)(
            min(self.low, other.low),
            max(self.high, other.high),
            bins,
            counts,
            self.channels.merged(other.channels) if self.channels and other.channels else None,
            self.rows.merged(other.rows) if self.rows and other.rows else None,
            self.moments.merged(other.moments) if self.moments and other.moments else None,
            self.excluded + other.excluded,
            patches={
                window: patch.merged(other.patches[window])
                for window, patch in self.patches.items()
                if window in other.patches
            },
        )


NOTHING = (np.inf, -np.inf, np.empty(0, np.uint16), np.empty(0, np.int64))
"""Extremes, bins and counts of no elements at all: merging with it changes nothing."""


def _merged(name: str, taps: Sequence[Tap]) -> Tap:
    axes = {tap.channel_axis for tap in taps} - {None}
    if len(axes) != 1:
        return Tap(name)
    windows = sorted({window for tap in taps for window in tap.windows})
    rows, moments = any(tap.rows for tap in taps), any(tap.moments for tap in taps)
    routed = next((tap for tap in taps if tap.chosen is not None), Tap(name))
    chosen, experts = routed.chosen, routed.experts
    return Tap(name, axes.pop(), rows, moments, tuple(windows), chosen, experts)


def _spread(sample: np.ndarray, low: float, high: float, count: int) -> tuple[np.ndarray, ...]:
    """The histogram of a sample, its counts raised to `count` elements, the extremes among them."""
    ends = count_codes(np.array([low, high], np.float32))
    held_codes = count_codes(np.clip(sample, low, high))
    total = np.cumsum(held_codes) * (count / max(sample.size, 1))
    raised = np.diff(np.rint(total), prepend=0).astype(np.int64)  # of the sums: no mass is lost
    raised = np.maximum(raised, np.minimum(held_codes + ends, 1))
    codes = np.flatnonzero(raised)
    return by_value(codes, raised[codes])
