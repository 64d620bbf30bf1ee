"""One part of the data (a few samples that ran together), and the elements of a value in it that
are data.

Rows of padding (if an input says which tokens are real) and fills of masks are removed. Elements
without a valid range (NaN, an infinity that is not from a mask, numbers beyond all formats) give a
verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from optkit.craft.calibration.fills import Fills
from optkit.facts.precisions import SCALABLE
from optkit.ground.statistics import MissingRange

_GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@dataclass(frozen=True, eq=False)
class SamplePart:
    """`first`: number of its first sample; `digests`: sha256 of each sample; `real`: bool [samples,
    tokens], False for padding; None if no input marks padding, or nothing is padded."""

    first: int
    digests: Sequence[bytes]
    real: np.ndarray | None = None
    _known: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return len(self.digests)

    @property
    def last(self) -> int:
        """The number of the sample after the last one."""
        return self.first + self.samples

    def hashes(self, rows: int) -> np.ndarray:
        """uint64 [rows], one per row of a value with this number of rows in this part. It is
        computed from the digest of the sample and the index in it (if the rows do not divide by the
        samples: from the first sample)."""
        if rows not in self._known:
            each = np.uint64(rows // self.samples if rows % self.samples == 0 else rows)
            index = np.arange(rows, dtype=np.uint64)
            keys = self._keys[(index // each).astype(np.intp)]
            self._known[rows] = _mixed(keys ^ _mixed(index % each))
        return self._known[rows]

    def sample(self, index: int, length: int) -> int:
        """The number of the sample at `index` of `length` along a leading axis."""
        whole = length >= self.samples and length % self.samples == 0
        return self.first + (index // (length // self.samples) if whole else 0)

    @cached_property
    def _keys(self) -> np.ndarray:
        return np.array(
            [int.from_bytes(digest[:8], "little") for digest in self.digests], np.uint64
        )


class Data(NamedTuple):
    """The elements of a value in a part that are data.

    `x` has the real rows, with zeros for fills; `kept`, of any shape, has all elements that are
    data; `places`: the indices of the real rows among `length` along the leading axis (tokens, if
    padding was removed; None: all rows); `extremes`: lowest and highest element of `x` in each
    channel, if there are channels. With a verdict all other fields are invalid.
    """

    x: np.ndarray
    kept: np.ndarray
    low: float
    high: float
    length: int
    places: np.ndarray | None
    verdict: MissingRange | None
    extremes: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def excluded(self) -> int:
        return self.x.size - self.kept.size


def data(value: np.ndarray, part: SamplePart, fills: Fills, axis: int | None) -> Data:
    """Remove from a value (floats of any shape) the elements that are not data. `axis`: that of the
    channels."""
    x, places = _real_rows(np.asarray(value, np.float32), part, axis)
    length = (
        part.real.size if places is not None and part.real is not None else (x.shape or (1,))[0]
    )
    kept = x
    if fills and x.size:
        no_data = fills.match(x)
        if no_data.any():
            kept = x[~no_data]
            x = np.where(no_data, np.float32(0), x)
    extremes = None if axis is None or not x.size else _extremes(x, axis)
    low, high = np.inf, -np.inf
    if kept.size:
        # the ends of the channels are few numbers: the whole value is not read again for them
        ends = (kept, kept) if kept is not x or extremes is None else extremes
        low, high = float(ends[0].min()), float(ends[1].max())
    verdict = None
    if not (low >= -SCALABLE and high <= SCALABLE):  # both are NaN if one element is
        row, number = _without_range(x)
        place = row if places is None else int(places[row])
        verdict = MissingRange(part.sample(place, length), _told(number))
    return Data(x, kept, low, high, length, places, verdict, extremes)


def _without_range(x: np.ndarray) -> tuple[int, float]:
    """The first element that no format represents, and its row."""
    with np.errstate(invalid="ignore"):
        flat = int(np.argmax(~(np.abs(x) <= SCALABLE)))
    return flat // (x.size // x.shape[0]) if x.ndim else 0, float(x.reshape(-1)[flat])


def by_channel(x: np.ndarray, axis: int) -> np.ndarray:
    """x as [outer, K, inner], a view: the axis of the channels is in the middle."""
    axis = axis % x.ndim
    view: np.ndarray = x.reshape(prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]))
    return view


def summed_axes(x: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """x [outer, K, inner] and the axes beside that of the channels; without `inner` if it is 1,
    which numpy reduces faster."""
    return (x[:, :, 0], (0,)) if x.shape[2] == 1 else (x, (0, 2))


def _extremes(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    x, axes = summed_axes(by_channel(x, axis))
    return x.min(axis=axes), x.max(axis=axes)


def _real_rows(
    x: np.ndarray, part: SamplePart, axis: int | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """(rows [m, …] of real tokens, their places among all tokens), or x itself and None."""
    real = part.real
    if real is None or x.ndim < 2:
        return x, None
    leading = x.ndim if axis is None else axis % x.ndim  # axes in front of the channels
    if leading >= 2 and x.shape[:2] == real.shape:
        x = x.reshape(-1, *x.shape[2:])
    elif not (leading >= 1 and x.ndim == 2 and len(x) == real.size):
        return x, None
    places = np.flatnonzero(real)
    return x[places], places


def _told(number: float) -> str:
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "Inf" if number > 0 else "-Inf"
    return f"{number:.3g}, beyond what FP16 can scale,"


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function (Steele, Lea and Flood, OOPSLA 2014): a bijection of uint64."""
    z = x + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed
