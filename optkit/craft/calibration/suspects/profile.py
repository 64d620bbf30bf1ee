"""The profile of a set of samples, input by input: figures by which two sets, or a set and a model,
are compared.

The samples are streamed. For each sample a few numbers are kept. For each input a histogram is kept
and, if all samples have one shape of at most `_POSITIONS` elements, the mean and the variance at
every position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Protocol, TypeVar

import numpy as np

from optkit.facts.tensors import Feed, TensorInfo, batched
from optkit.ground.data.padding import mask_input, real_tokens
from optkit.ground.data.sequences import IDS
from optkit.ground.statistics.bins import BINS, by_value, count_codes

T = TypeVar("T", covariant=True)

LAGS = (1, 2, 3)
"""Distances at which neighbours are compared: up to the distance of one colour in interleaved
RGB."""

_LONG = 8  # the least length of an axis whose neighbours are compared
_POSITIONS = 1 << 20  # mean and variance at each of them take 16 MiB
_AT_ONCE = 1 << 20  # elements in float64 at a time
_TOKENS = 1 << 22  # larger numbers are not tokens: the largest vocabularies have about 262,000
_COLOURS = 3


@dataclass(frozen=True, eq=False)
class NumericInput:
    """An input of numbers: pixels, features, spectra.

    `lows`, `highs`, `means`, `deviations`: of each sample's elements, float64 [samples]. `bins`,
    `counts`: the histogram of all (see `statistics.bins`). `neighbours`: axis → the correlation of
    elements 1, 2 and 3 apart along it. `centre`, `variance`: at each position over the samples,
    float64 of a sample's shape; None where shapes differ or are too large. `colours`: means of
    three channels on axis 1, float64 [samples, 3].
    """

    info: TensorInfo
    elements: int  # for one sample; 0 if the samples differ
    lows: np.ndarray
    highs: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    bins: np.ndarray
    counts: np.ndarray
    whole: bool  # whether every number is an integer
    neighbours: Mapping[int, tuple[float, ...]]
    centre: np.ndarray | None
    variance: np.ndarray | None
    colours: np.ndarray | None

    @property
    def samples(self) -> int:
        return len(self.lows)

    @property
    def low(self) -> float:
        return float(self.lows.min())

    @property
    def high(self) -> float:
        return float(self.highs.max())

    @property
    def largest(self) -> float:
        return max(abs(self.low), abs(self.high))

    @property
    def deviation(self) -> float:
        """The standard deviation of all elements of all samples together."""
        within = float(np.mean(self.deviations**2))
        return float(np.sqrt(within + self.means.var()))

    @property
    def is_picture(self) -> bool:
        """Whether it has the form of pictures: [batch, 1 or 3 or 4, height, width], or channels
        last."""
        shape = self.info.shape
        return len(shape) == 4 and bool({shape[1], shape[3]} & {1, 3, 4})


@dataclass(frozen=True, eq=False)
class TokenInput:
    """An input of token ids [batch, tokens]. `counts`: how often each id occurs among real tokens;
    `lengths`: real tokens of each sample; `rows`: rows of the embedding table (None: unknown);
    `text`: whether they are a text, not segment ids or positions. `largest`: the largest id (also
    in padding) and its sample; `lowest`: the smallest. `trailing`: the share of unmasked tokens
    that repeat the last one at the end of a sample."""

    info: TensorInfo
    counts: np.ndarray
    lengths: np.ndarray
    rows: int | None
    text: bool
    largest: tuple[int, int]
    lowest: tuple[int, int]
    trailing: float

    @property
    def total(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True, eq=False)
class Mask:
    """An input that marks real tokens and padding. `empty`: samples that are completely hidden;
    `odd`: the first few values other than 0 and 1."""

    info: TensorInfo
    samples: int
    empty: int
    odd: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Profile:
    """One set of samples: `distinct` of `samples`, compared without padding."""

    samples: int
    distinct: int
    numbers: Mapping[str, NumericInput] = field(default_factory=dict)
    tokens: Mapping[str, TokenInput] = field(default_factory=dict)
    masks: Mapping[str, Mask] = field(default_factory=dict)


def profile(
    feeds: Iterable[Feed],
    inputs: tuple[TensorInfo, ...],
    tables: Mapping[str, int],
    digests: Iterable[str],
) -> Profile:
    """Read every sample once. tables: rows of the embedding table of an integer input; digests: one
    per sample. Integer inputs that are neither tokens nor a mask (positions, segment ids) have no
    profile."""
    size = batched(inputs)
    mask = mask_input(inputs)
    several = [info for info in inputs if info.name in size]
    floats = {i.name: _Numbers(i) for i in several if _holds_numbers(i)}
    named = [i for i in several if i != mask and _holds_tokens(i, tables)]
    ids = {
        i.name: _Tokens(i, tables.get(i.name), text=_is_text(i.name, inputs, tables)) for i in named
    }
    masks = {info.name: _Mask(info) for info in several if info == mask}
    arrays: list[tuple[str, _Numbers | _Mask]] = [*floats.items(), *masks.items()]
    for feed in feeds:
        real = real_tokens(feed, mask)
        for name, seen in arrays:
            seen.add(feed[name])
        for name, tokens in ids.items():
            tokens.add(feed[name], real)
    known = list(digests)
    return Profile(len(known), len(set(known)), _results(floats), _results(ids), _results(masks))


class _Seen(Protocol[T]):
    def result(self) -> T | None: ...


def _results(seen: Mapping[str, _Seen[T]]) -> dict[str, T]:
    """The results of the inputs that had any number."""
    results = {name: input_.result() for name, input_ in seen.items()}
    return {name: result for name, result in results.items() if result is not None}


def _holds_numbers(info: TensorInfo) -> bool:
    return info.dtype.startswith("float") or (
        info.dtype.startswith(("int", "uint")) and len(info.shape) > 2
    )


def _holds_tokens(info: TensorInfo, tables: Mapping[str, int]) -> bool:
    named = info.name == IDS or info.name in tables
    return named and info.dtype.startswith("int") and len(info.shape) == 2


def _is_text(name: str, inputs: tuple[TensorInfo, ...], tables: Mapping[str, int]) -> bool:
    """The inputs that are texts: those with names like token ids; if there are none, those that are
    looked up in the largest table."""
    named = [info.name for info in inputs if info.name.endswith(IDS)]
    return name in named if named else tables.get(name, 0) == max(tables.values(), default=0)


class _Numbers:
    """Accumulates the arrays of one input."""

    def __init__(self, info: TensorInfo) -> None:
        self.info = info
        self._each: list[np.ndarray] = []  # [4, samples]: low, high, mean, deviation
        self._codes = np.zeros(BINS, np.int64)
        self._whole = True
        self._shapes: set[tuple[int, ...]] = set()
        self._sums: tuple[np.ndarray, np.ndarray] | None = None
        # axis → [lags, 2]: squared steps, and their number
        self._squares: dict[int, np.ndarray] = {}
        self._colours: list[np.ndarray] = []

    def add(self, array: np.ndarray) -> None:
        """Add an array [batch, …]."""
        each = prod(array.shape[1:])
        if not each:  # an empty cache
            return
        rows = max(_AT_ONCE // each, 1)
        for start in range(0, len(array), rows):
            self._add(array[start : start + rows].astype(np.float64))

    def _add(self, x: np.ndarray) -> None:
        flat = x.reshape(len(x), -1)
        self._each.append(np.stack([flat.min(1), flat.max(1), flat.mean(1), flat.std(1)]))
        self._codes += count_codes(np.clip(x, *_FLOAT32))
        self._whole = self._whole and bool((x == np.rint(x)).all())
        self._shapes.add(x.shape[1:])
        self._add_positions(x)
        for axis in range(1, x.ndim):
            if x.shape[axis] >= _LONG:
                steps = np.array([_steps(x, axis, lag) for lag in LAGS])
                self._squares[axis] = self._squares.get(axis, 0) + steps
        if x.ndim == 4 and x.shape[1] == _COLOURS:
            self._colours.append(x.mean(axis=(2, 3)))

    def _add_positions(self, x: np.ndarray) -> None:
        if len(self._shapes) > 1 or x[0].size > _POSITIONS:
            self._sums = None
            return
        more = x.sum(axis=0), (x**2).sum(axis=0)
        before = self._sums or (0.0, 0.0)
        self._sums = before[0] + more[0], before[1] + more[1]

    def result(self) -> NumericInput | None:
        """The figures; None if all arrays were empty."""
        if not self._each:
            return None
        lows, highs, means, deviations = np.concatenate(self._each, axis=1)
        within = float(np.mean(deviations**2))
        centre = variance = None
        if self._sums is not None:
            centre = self._sums[0] / len(lows)
            variance = np.maximum(self._sums[1] / len(lows) - centre**2, 0.0)
        return NumericInput(
            self.info,
            prod(next(iter(self._shapes))) if len(self._shapes) == 1 else 0,
            lows,
            highs,
            means,
            deviations,
            *by_value(found := np.flatnonzero(self._codes), self._codes[found]),
            self._whole,
            {axis: _correlations(steps, within) for axis, steps in self._squares.items()},
            centre,
            variance,
            np.concatenate(self._colours) if self._colours else None,
        )


_FLOAT32 = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))


def _steps(x: np.ndarray, axis: int, lag: int) -> tuple[float, int]:
    """(sum of squared differences of elements `lag` apart along an axis, their number)."""
    moved = np.moveaxis(x, axis, -1)
    steps = moved[..., lag:] - moved[..., :-lag]
    return float((steps**2).sum()), steps.size


def _correlations(steps: np.ndarray, variance: float) -> tuple[float, ...]:
    """1 − E[(x − x′)²] / 2σ² at each lag; 0 if the values never vary."""
    if not variance:
        return (0.0,) * len(steps)
    return tuple(float(1 - total / count / (2 * variance)) for total, count in steps)


class _Tokens:
    def __init__(self, info: TensorInfo, rows: int | None, *, text: bool) -> None:
        self.info = info
        self._rows, self._text = rows, text
        self._counts = np.zeros(0, np.int64)
        self._lengths: list[np.ndarray] = []
        self._largest, self._lowest = (-1, 0), (_TOKENS, 0)
        self._samples = self._trailing = self._shown = 0

    def add(self, ids: np.ndarray, real: np.ndarray | None) -> None:
        """Add token ids [batch, tokens]. `real`: of the same shape, False for padding."""
        if real is None or real.shape != ids.shape:
            real = np.ones(ids.shape, bool)
        if not ids.size:
            return
        for index, row in enumerate(ids):
            low, high = int(row.min()), int(row.max())
            self._largest = max(self._largest, (high, -(self._samples + index)))
            self._lowest = min(self._lowest, (low, self._samples + index))
            kept = row[real[index]]
            self._trailing += _repeated(kept)
            self._shown += len(kept)
        sound = ids[real & (ids >= 0) & (ids < _TOKENS)]
        more = np.bincount(sound, minlength=len(self._counts))
        more[: len(self._counts)] += self._counts
        self._counts = more
        self._lengths.append(real.sum(axis=1))
        self._samples += len(ids)

    def result(self) -> TokenInput | None:
        if not self._lengths:
            return None
        lengths = np.concatenate(self._lengths)
        largest = self._largest[0], -self._largest[1]
        trailing = self._trailing / max(self._shown, 1)
        return TokenInput(
            self.info,
            self._counts,
            lengths,
            self._rows,
            self._text,
            largest,
            self._lowest,
            trailing,
        )


def _repeated(row: np.ndarray) -> int:
    """How many tokens at the end of a row repeat its last token, for the longer of both ends
    (padding is on one of them)."""
    if len(row) < 2:
        return 0
    ends = [np.flatnonzero(way != way[0]) for way in (row, row[::-1])]
    return max(int(places[0]) - 1 if places.size else len(row) - 1 for places in ends)


class _Mask:
    def __init__(self, info: TensorInfo) -> None:
        self.info = info
        self._samples = self._empty = 0
        self._odd: set[float] = set()

    def add(self, mask: np.ndarray) -> None:
        """Add a mask [batch, tokens]."""
        self._samples += len(mask)
        self._empty += int((mask == 0).all(axis=1).sum())
        if len(self._odd) < _FEW:
            other = np.unique(mask[(mask != 0) & (mask != 1)])
            self._odd |= set(other[:_FEW].astype(float).tolist())

    def result(self) -> Mask:
        return Mask(self.info, self._samples, self._empty, tuple(sorted(self._odd)[:_FEW]))


_FEW = 3  # values that the finding names
