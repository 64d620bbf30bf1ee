"""The range of a value that its codes should cover: arithmetic on `ValueStatistics`.

minmax      the extremes: nothing is clipped. The range is slightly wider if that gives recurring
            values, like the background of images, exact codes
percentile  the narrowest bins with p % of the elements
entropy     least KL(P ‖ Q) between the clipped distribution P and its quantized form Q
            (Migacz, "8-bit inference with TensorRT", GTC 2017)
mse         least E[(x - q(x))²] over the histogram (Sung et al. 2015, arXiv:1511.06488; Banner et
            al. 2019, arXiv:1810.05723, minimise the same in closed form)
auto        the range, of these, with the least error in the products that read the value: the
            noise of (q(x) - x) w, relative to each output channel (`output_noise`), over a sample
            of rows x and the weights w
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from optkit.craft.quantization.numerics.format_codes import nearest
from optkit.craft.quantization.numerics.output_noise import channel_weights
from optkit.craft.quantization.numerics.scales import activation_scale
from optkit.craft.quantization.rescaling.smoothquant import ActivationSample, clipped
from optkit.facts.dtypes import FLOATS
from optkit.facts.errors import OptkitError
from optkit.facts.precisions import NumberFormat
from optkit.ground.recipe import Method
from optkit.ground.statistics import ValueStatistics, edges

BINS = 2048  # bins of equal width on each side of zero, for entropy: 16 per level of 8 bits
_FEW = 0.01  # share of elements that may be outliers
_TINY = FLOATS["float32"].smallest * BINS  # there is no search below this range
_STEP = 16  # bins between two candidates
_LEVELS = 128  # bins of the narrowest candidate: one per level
_SMOOTH = 1e-4  # share of a uniform distribution mixed in: no bin has probability zero
_SPLIT = 4  # points that represent the elements of a bin
_COLUMNS = 1024  # columns of weights that evaluate a range; of more, some at equal distances
_WIDER = np.linspace(1, 1 + 1 / 64, 65)  # costs at most 0.14 dB if no value recurs
_RECURRING = 10**-0.1  # the largest share of the error that remains if values recur
_ELEMENTS = 1 << 14  # rows of the sample that are evaluated


_CHOSEN: dict[bytes, Range] = {}
"""Digest of the arguments → range. One worker judges activations and then quantizes them, and a
search tries many precisions: each of these steps chooses the same ranges."""


class Range(NamedTuple):
    """[low, high], finite, low ≤ high, not yet widened to contain zero.

    `method`: the observer that computed it. `error`: noise over signal (`output_noise`) of the
    products if rows and consumers are known, else noise power over signal power of the histogram; 0
    if the signal is zero. `rounding`: the part of the error that is not clipping of other data.
    """

    low: float
    high: float
    method: str
    error: float
    rounding: float


def choose(
    value: ValueStatistics,
    fmt: NumberFormat,
    method: Method,
    percentile: float = 99.99,
    consumers: Sequence[np.ndarray] = (),
) -> Range:
    """The range of a value in codes of `fmt`.

    consumers: the weights [K, N] that multiply its channels (the kernel of a convolution as [C, N ·
    kh · kw]: each of its taps is a product). The error, and the choice of "auto", are computed in
    these products. Without consumers, or without sampled rows in the statistics, they are computed
    on the histogram. A range that another tool has chosen stays as it is.

    Raises OptkitError for an unbounded value.
    """
    if value.unbounded is not None:
        raise OptkitError(f"it has no range: {value.unbounded}", where="range")
    judge = RangeJudge(value, fmt, consumers)
    key = judge.digest(method, percentile)
    if (known := _CHOSEN.get(key)) is None:
        known = _CHOSEN[key] = _chosen(judge, value, fmt, method, percentile)
    return known


def _chosen(
    judge: RangeJudge, value: ValueStatistics, fmt: NumberFormat, method: Method, percentile: float
) -> Range:
    if value.given:
        return judge.range(value.low, value.high, "given")
    if value.low == value.high or max(-value.low, value.high) < _TINY:
        return judge.range(value.low, value.high, "minmax")
    if method == "minmax":
        return judge.range(*minmax(value, fmt), "minmax")
    if method != "auto":
        return judge.range(*_SEARCHES[method](value, fmt, percentile), method)
    if not judge.sees_products:
        return judge.range(*mse(value, fmt, percentile), "mse")
    candidates = [judge.range(*minmax(value, fmt), "minmax")]
    candidates += [
        judge.range(*search(value, fmt, percentile), m) for m, search in _SEARCHES.items()
    ]
    return min(candidates, key=lambda candidate: candidate.error)


def minmax(value: ValueStatistics, fmt: NumberFormat) -> tuple[float, float]:
    """The extremes, or both extremes increased by up to 1/64, if that reduces the error on the
    sampled rows by 1 dB: only numbers that recur very often can gain that much."""
    if not fmt.is_integer or value.rows is None or not value.rows.data.size:
        return value.low, value.high
    x = value.rows.data[:: -(-value.rows.data.size // _ELEMENTS)]
    tried = [(value.low * f, value.high * f) for f in _WIDER.tolist()]
    lost = [float(np.square(fake_quantized(x, *ends, fmt) - x).sum()) for ends in tried]
    best = int(np.argmin(lost))
    return tried[best] if lost[best] < lost[0] * _RECURRING else tried[0]


def percentile_range(
    value: ValueStatistics, fmt: NumberFormat, percentile: float
) -> tuple[float, float]:
    """The narrowest bin edges with `percentile` % of the elements; each tail loses half of the rest
    (at most one bin, 1/128, wider than exact)."""
    if percentile >= 100:
        return value.low, value.high
    tail = value.count * (100 - percentile) / 200
    below = np.cumsum(value.counts)  # elements up to and with this bin
    lower, upper = edges(value.bins)
    first = int(np.searchsorted(below, tail, side="right"))
    last = int(np.searchsorted(below, value.count - tail, side="left"))
    return max(value.low, float(lower[first])), min(value.high, float(upper[last]))


def mse(value: ValueStatistics, fmt: NumberFormat, percentile: float) -> tuple[float, float]:
    """The range with the least expected squared error: first both ends are reduced together, then
    each alone."""
    coarse, fine = _points(value, 1), _points(value, _SPLIT)
    low, high = min(value.low, 0.0), max(value.high, 0.0)
    ends = np.array([low, high])
    shrink = 0.5 ** np.linspace(0, 8, 49)
    kept = _least(coarse, fmt, [ends * f for f in shrink])
    near = 0.5 ** np.linspace(-1 / 6, 1 / 6, 13)
    kept = _least(fine, fmt, [_within(kept * f, ends) for f in near] + [ends])
    if not fmt.symmetric and low < 0 < high:
        for turn in range(4):
            side = np.array([turn % 2 == 0, turn % 2 == 1])
            tried = [np.where(side, _within(kept * f, ends), kept) for f in _AROUND]
            kept = _least(fine, fmt, [kept, *tried])
    return float(kept[0]), float(kept[1])


def entropy(value: ValueStatistics, fmt: NumberFormat, percentile: float) -> tuple[float, float]:
    """The range with the least Kullback-Leibler divergence among those that keep 128, 144, … 2,048
    of 2,048 bins on the wider side of zero. If the narrowest wins and excludes few elements, its
    bins are divided again, so that a few outliers do not determine the resolution."""
    low, high = min(value.low, 0.0), max(value.high, 0.0)
    while True:
        candidates = list(divergences(value, fmt, low, high))
        kept, (below, above), _ = min(candidates, key=lambda candidate: candidate[2])
        low, high = max(low, below), min(high, above)
        few = value.fraction_outside(low, high) <= _FEW
        if kept > _LEVELS or not few or max(-low, high) < _TINY:
            return low, high


def divergences(
    value: ValueStatistics, fmt: NumberFormat, low: float, high: float
) -> Iterator[tuple[int, tuple[float, float], float]]:
    """(bins kept, range, divergence in nats) of each candidate within [low, high]."""
    width = max(-low, high) / BINS
    negative, positive = round(-low / width), round(high / width)  # the sides' shares of bins
    counts, below, above = _linear(value, width, negative, positive)
    centres = (np.arange(-negative, positive) + 0.5) * width
    for kept in range(_LEVELS, BINS + 1, _STEP):
        cut_low, cut_high = round(negative * kept / BINS), round(positive * kept / BINS)
        left, right = negative - cut_low, negative + cut_high
        p = counts[left:right].copy()
        q = _as_told(p, centres[left:right], -cut_low * width, cut_high * width, fmt)
        p[0] += below + counts[:left].sum()
        p[-1] += above + counts[right:].sum()
        yield kept, (-cut_low * width, cut_high * width), _divergence(p, q)


def fake_quantized(x: np.ndarray, low: float, high: float, fmt: NumberFormat) -> np.ndarray:
    """x after quantization to codes of `fmt` that cover [low, high] and dequantization; x's
    shape."""
    scale = activation_scale(low, high, fmt, np.float32)
    step = float(scale.scale)
    through: np.ndarray = nearest(x / step, fmt, float(scale.zero_point)) * step
    return through


_SEARCHES = {"percentile": percentile_range, "entropy": entropy, "mse": mse}
_AROUND = 0.5 ** np.concatenate([np.linspace(0, 4, 25), np.linspace(-0.5, 0.3, 13)])


class RangeJudge:
    """The error of ranges: in the products if they can be computed, otherwise in the histogram.
    `consumers`: as in `choose`."""

    def __init__(
        self, value: ValueStatistics, fmt: NumberFormat, consumers: Sequence[np.ndarray]
    ) -> None:
        self._fmt = fmt
        self._value = value
        self._points: _Points | None = None
        self.sees_products = bool(consumers) and value.rows is not None and value.rows.data.size > 0
        if self.sees_products and value.rows is not None:
            self._rows = value.rows.data
            self._weights = _thinned(consumers)

    def digest(self, *settings: object) -> bytes:
        """Equal for equal numbers that choose a range, with these settings."""
        value, channels = self._value, self._value.channels
        arrays = [value.bins, value.counts]
        arrays += [] if value.rows is None else [value.rows.data]
        arrays += [] if channels is None else [channels.low, channels.high]
        arrays += [self._weights] if self.sees_products else []
        count = None if channels is None else channels.count
        text = repr((value.low, value.high, value.given, count, self._fmt, settings))
        made = blake2b(repr((text, [array.shape for array in arrays])).encode())
        for array in arrays:
            made.update(np.ascontiguousarray(array).data)
        return made.digest()

    @cached_property
    def _per_output(self) -> np.ndarray:
        """What the noise of each column of the products counts."""
        return channel_weights(self._rows @ self._weights)

    @cached_property
    def _sample(self) -> ActivationSample | None:
        """The sampled rows with the extremes of their channels; None if those are unknown."""
        channels = self._value.channels
        if channels is None or channels.low.shape != self._rows.shape[1:]:
            return None
        return ActivationSample(self._rows, channels.low, channels.high, channels.count)

    def range(self, low: float, high: float, method: str) -> Range:
        rounding = self._rounding(low, high)
        unseen = self._unseen(low, high) if self.sees_products else 0.0
        return Range(low, high, method, rounding + unseen, rounding)

    def power(self, low: float, high: float) -> float:
        """The noise of all products of the sampled rows relative to their power, clipping
        included."""
        if not self.sees_products:
            return self._rounding(low, high)
        signal = float(np.square(self._rows @ self._weights, dtype=np.float64).mean(axis=0).sum())
        return float(self._powers(low, high).sum()) / signal if signal else 0.0

    def _powers(self, low: float, high: float) -> np.ndarray:
        """Mean noise power of each column of the products, float64."""
        noise = fake_quantized(self._rows, low, high, self._fmt) - self._rows
        powers: np.ndarray = np.square(noise @ self._weights, dtype=np.float64).mean(axis=0)
        return powers

    def _rounding(self, low: float, high: float) -> float:
        if self.sees_products:
            return float(self._powers(low, high) @ self._per_output)
        if self._points is None:
            self._points = _points(self._value, _SPLIT)
        signal = float(self._points.weight @ self._points.x**2)
        return _squared_error(self._points, self._fmt, low, high) / signal if signal else 0.0

    def _unseen(self, low: float, high: float) -> float:
        """The noise in the products that clipping is expected to cause, beyond the clipping of the
        sampled rows: rare extremes of the calibration data, and larger values in other data.
        Without it, the rows that choose a range would also be the only ones that evaluate its
        clipping."""
        sample = self._sample
        if sample is None:
            return 0.0
        reach = (np.maximum(sample.high - high, 0.0), np.maximum(low - sample.low, 0.0))
        known = sum(np.square(side, dtype=np.float64) for side in reach) / max(sample.seen or 1, 1)
        lost = clipped(sample, low, high) + known
        return float(lost @ np.square(self._weights, dtype=np.float64) @ self._per_output)


class _Points(NamedTuple):
    """A histogram as points x with weights (numbers of elements)."""

    x: np.ndarray
    weight: np.ndarray


def _points(value: ValueStatistics, split: int) -> _Points:
    """Each bin as `split` points spread evenly in it."""
    lower, upper = edges(value.bins)
    lower, upper = np.maximum(lower, value.low), np.minimum(upper, value.high)
    share = (np.arange(split) + 0.5) / split
    x = lower[:, None] + (upper - lower)[:, None] * share
    return _Points(x.reshape(-1), np.repeat(value.counts / split, split))


def _squared_error(points: _Points, fmt: NumberFormat, low: float, high: float) -> float:
    noise = fake_quantized(points.x, low, high, fmt) - points.x
    return float(np.sum(points.weight * noise**2))  # a BLAS dot would wake its threads


def _least(points: _Points, fmt: NumberFormat, candidates: Sequence[np.ndarray]) -> np.ndarray:
    return min(candidates, key=lambda ends: _squared_error(points, fmt, *ends.tolist()))


def _within(ends: np.ndarray, limits: np.ndarray) -> np.ndarray:
    clipped: np.ndarray = np.clip(ends, limits[0], limits[1])
    return clipped


def _linear(
    value: ValueStatistics, width: float, negative: int, positive: int
) -> tuple[np.ndarray, float, float]:
    """Counts [negative + positive] in bins of equal width around zero, and the counts below and
    above.

    The elements of a bin of the histogram are distributed evenly over it. Zeros are left out,
    because they have an exact code, and they are half of the outputs of a Relu.
    """
    lower, upper = edges(value.bins)
    counts = np.where((lower == 0) | (upper == 0), 0, value.counts)
    lower, upper = np.maximum(lower, value.low), np.minimum(upper, value.high)
    at = np.stack([lower, upper], axis=1).reshape(-1)
    total = np.cumsum(counts)
    known = np.stack([total - counts, total], axis=1).reshape(-1)
    borders = np.arange(-negative, positive + 1) * width
    reached = np.interp(borders, at, known)
    return np.diff(reached), float(reached[0]), float(total[-1] - reached[-1])


def _as_told(
    counts: np.ndarray, centres: np.ndarray, low: float, high: float, fmt: NumberFormat
) -> np.ndarray:
    """The distribution that the codes represent: the bins of one code share its elements evenly,
    except bins without elements."""
    codes = fake_quantized(centres, low, high, fmt)
    starts = np.flatnonzero(np.diff(codes, prepend=np.nan))
    held = counts > 0
    total, bins = np.add.reduceat(counts, starts), np.add.reduceat(held.astype(np.int64), starts)
    sizes = np.diff(starts, append=len(counts))
    shared: np.ndarray = np.repeat(total / np.maximum(bins, 1), sizes) * held
    return shared


def _divergence(p: np.ndarray, q: np.ndarray) -> float:
    if not q.sum():
        return np.inf
    p, q = ((1 - _SMOOTH) * d / d.sum() + _SMOOTH / d.size for d in (p, q))
    return float(p @ np.log(p / q))


def _thinned(consumers: Sequence[np.ndarray]) -> np.ndarray:
    """Columns of all weights next to each other, float32 [K, at most about `_COLUMNS`]."""
    columns = sum(w.shape[1] for w in consumers)
    step = -(-columns // _COLUMNS)
    return np.concatenate([np.asarray(w[:, ::step], np.float32) for w in consumers], axis=1)
