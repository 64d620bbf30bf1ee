"""SmoothQuant: move the spread of the channels of an activation into the weights that read it.

    x W = (x / s) (s W)        s_k = max|x_k|^a / max|W_k|^(1-a)

(Xiao et al. 2022, arXiv:2211.10438, eq. 3 and 4.) An activation has one scale for all channels, but
weights have one per output channel, so outlier channels cost less in the weights. The exponent a is
searched for each group of nodes that read one activation. Its error is that of the outputs on
sampled rows, with the number formats that will be used, plus the expected clipping on other data:
smoothing moves every channel to the end of the range. The module works on arrays.

MatMulNBits computes the scales of activations at run time, in blocks, so it clips nothing. An
outlier channel costs the precision of the channels in its block. Its weights, which training made
small, get the scale of their block, and most of them become zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from optkit.craft.quantization.numerics import run_time_blocks, scales
from optkit.craft.quantization.numerics.output_noise import channel_weights
from optkit.craft.quantization.numerics.scales import Scale
from optkit.craft.quantization.rescaling.factor_search import Candidate, FactorChoice, least_error
from optkit.facts.precisions import NumberFormat

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
BLOCK_ALPHAS = (0.35, 0.5, 0.65)  # before MatMulNBits

# A channel counts as at least this share of the largest. It may be larger on data that
# calibration has not seen, and a factor for its small values would make it an outlier.
_LEAST_SHARE = 2.0**-10
# one in this many rows estimates a tail, and the smallest number of such rows
_TAIL_SHARE, _TAIL_LEAST = 32, 8
MOST_PRODUCTS = 1 << 27
"""Multiply-accumulates for one candidate. Fewer output channels and rows are compared, at equal
distances, if there would be more."""
_LEAST_ROWS = 64


@dataclass(frozen=True)
class ActivationSample:
    """An activation: sampled rows [n, K], and the extremes [K] of each channel over all `seen` rows
    (None: the sample has all rows)."""

    rows: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seen: int | None = None

    @property
    def absmax(self) -> np.ndarray:
        return np.asarray(np.maximum(np.maximum(-self.low, self.high), 0.0))

    @cached_property
    def tails(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean excess of the smallest and the largest rows of each channel over the m-th of
        them, float64 [K] each: the scale of the two tails."""
        count = min(max(len(self.rows) // _TAIL_SHARE, _TAIL_LEAST), len(self.rows))
        excess = []
        for rows in (-self.rows, self.rows):
            top = np.partition(rows, len(rows) - count, axis=0)[len(rows) - count :]
            excess.append((top - top.min(axis=0)).mean(axis=0, dtype=np.float64))
        return excess[0], excess[1]

    def divided(self, s: np.ndarray) -> ActivationSample:
        return replace(self, rows=self.rows / s, low=self.low / s, high=self.high / s)


Whole = tuple[ActivationSample, Sequence[np.ndarray]]
"""An activation and the kernels that multiply it, whose outputs are the signal."""


@dataclass(frozen=True)
class Formats:
    """The number formats of activations (None: they are not rounded) and weights. `carrier`: the
    dtype of scales."""

    activation: NumberFormat | None
    weight: NumberFormat
    carrier: np.dtype | type = np.float32

    @property
    def weight_only(self) -> bool:
        """Whether the graph has no scales of activations: the kernel computes them, or needs
        none."""
        return self.activation is None or run_time_blocks.is_rounded(self.activation)


def factors(
    x_absmax: np.ndarray, w_absmax: np.ndarray, alpha: float, ties: np.ndarray | None = None
) -> np.ndarray:
    """s [K], float32, positive, geometric mean 1.

    x_absmax, w_absmax [K]: the largest magnitude of each channel and of its weights. ties [K]:
    channels with the same number get the same factor. alpha: 0 uses only the weights, 1 only the
    activation.
    """
    x, w = (_floored(_tied(part.astype(np.float64), ties)) for part in (x_absmax, w_absmax))
    return normalized(x**alpha / w ** (1.0 - alpha))


def normalized(s: np.ndarray) -> np.ndarray:
    """`s` with geometric mean 1, float32, so that the numbers stay in the range of half
    precision."""
    return np.asarray((s / np.exp(np.log(s).mean())).astype(np.float32))


def absmax(kernels: Sequence[np.ndarray]) -> np.ndarray:
    """The largest weight magnitude of each input channel [K], over several readers."""
    largest = [np.abs(_kernel(w)).max(axis=(2, 3), initial=0.0).reshape(-1) for w in kernels]
    return np.asarray(np.max(largest, axis=0))


def output_error(
    sample: ActivationSample,
    kernels: Sequence[np.ndarray],
    formats: Formats,
    s: np.ndarray | None = None,
) -> float:
    """Noise of the outputs x W relative to each output channel's signal (`output_noise`), averaged
    over the weights, if activation (divided by `s`) and weights (multiplied by it) are rounded. 0:
    exact; 1: the noise is as large as the signal.

    kernels: each [K, N], or [groups, K/groups, N/groups, taps] of a convolution. Each tap of a
    kernel is evaluated alone, on every row, because sampled rows have no neighbours. The expected
    clipping on other data (`clipped`) is added.
    """
    return _Judge(sample, kernels, formats).error(s)


def rounding_errors(
    sample: ActivationSample,
    kernels: Sequence[np.ndarray],
    formats: Formats,
    candidates: Sequence[np.ndarray | None],
    *,
    products: int = MOST_PRODUCTS,
) -> list[float]:
    """`output_error` of each of the factors, without the expected clipping on other data."""
    judge = _Judge(*_thinned(sample, kernels, products), formats)
    return [judge.rounding(s) for s in candidates]


def activation_error(
    sample: ActivationSample,
    kernels: Sequence[np.ndarray],
    formats: Formats,
    *,
    products: int = MOST_PRODUCTS,
) -> float:
    """`output_error` of the activation as it is, with exact weights, and without the expected
    clipping on other data."""
    return _Judge(*_thinned(sample, kernels, products), formats).activation()


def clipped(
    sample: ActivationSample, low: float, high: float, s: np.ndarray | None = None
) -> np.ndarray:
    """E[c²] [K]: the expected power that clipping x / s to [low, high] removes from each channel of
    x on other data like the sample. The clipping of the sample itself is not included.

    Another number exceeds the largest of `seen` numbers with probability 1 / (seen + 1). The tails
    are assumed to be exponential with scale t, the mean excess over the m-th largest number of the
    sample. A share exp(-(L - max) / t) of this probability is beyond a limit L, with a squared
    excess of 2 t².
    """
    factor = np.float32(1.0) if s is None else s
    rare = 1.0 / ((sample.seen or len(sample.rows)) + 1.0)
    total = np.zeros(sample.rows.shape[1])
    below, above = sample.tails
    for tail, room in ((below, sample.low - low * factor), (above, high * factor - sample.high)):
        beyond = np.maximum(room, 0.0) / np.maximum(tail, 1e-30)
        total += np.where(tail > 0, 2.0 * np.square(tail) * np.exp(-beyond) * rare, 0.0)
    return total


def search(
    sample: ActivationSample,
    kernels: Sequence[np.ndarray],
    formats: Formats,
    *,
    alphas: Sequence[float] = ALPHAS,
    ties: np.ndarray | None = None,
    leave: bool = True,
    others: Sequence[np.ndarray] = (),
    besides: Callable[[np.ndarray | None], float] = lambda s: 0.0,
    products: int = MOST_PRODUCTS,
    whole: Whole | None = None,
) -> FactorChoice:
    """The candidate with the least output error. `leave`: the unchanged activation is one of the
    candidates.

    others: further factors [K] to try, from any source; their alpha is None. besides: the error
    that the factors cause at other nodes; it is added to that of the outputs. products:
    multiply-accumulates for one candidate, at most. whole: what the outputs are part of.
    """
    signal = None if whole is None else _thinned(*whole, products)
    judge = _Judge(*_thinned(sample, kernels, products), formats, signal)
    x, w = sample.absmax, absmax(kernels)
    candidates: list[Candidate] = [(alpha, factors(x, w, alpha, ties)) for alpha in alphas]
    candidates += [(None, s) for s in others]
    return least_error(candidates, lambda s: judge.error(s) + besides(s), leave=leave)


class _Judge:
    """Compares candidates, and keeps what the comparisons have in common."""

    def __init__(
        self,
        sample: ActivationSample,
        kernels: Sequence[np.ndarray],
        formats: Formats,
        whole: Whole | None = None,
    ) -> None:
        self._sample, self._formats = sample, formats
        self._kernels = [_kernel(w) for w in kernels]
        self._wanted = [_product(sample.rows, w) for w in self._kernels]
        # noise of the outputs per unit of an error's power in each channel, averaged over the
        # weights
        self._weight = np.zeros(sample.rows.shape[1])
        signals = self._wanted
        if whole is not None:
            signals = [_product(whole[0].rows, _kernel(w)) for w in whole[1]]
        self._per_output = [channel_weights(signal) for signal in signals]
        for w, weights in zip(self._kernels, self._per_output, strict=True):
            squares = np.square(w, dtype=np.float64)  # [groups, inputs, outputs, taps]
            of_outputs = weights.reshape(w.shape[0], 1, w.shape[2], w.shape[3])
            self._weight += (squares * of_outputs).sum(axis=(2, 3)).reshape(-1) / len(kernels)

    def error(self, s: np.ndarray | None) -> float:
        """See `output_error`."""
        fmt = self._formats.activation
        if fmt is None or self._formats.weight_only:
            return self.rounding(s)
        _, scale = self._divided(s, fmt)
        limits = scales.representable(scale, fmt)
        unseen = float(clipped(self._sample, *limits, s) @ self._weight)
        return self.rounding(s) + unseen

    def rounding(self, s: np.ndarray | None) -> float:
        """See `rounding_errors`."""
        rows = self._held(s)
        along = [
            w if s is None else w * s.reshape(w.shape[0], w.shape[1], 1, 1) for w in self._kernels
        ]
        return self._noise(
            _product(rows, rounded(w, self._formats)) - wanted
            for w, wanted in zip(along, self._wanted, strict=True)
        )

    def activation(self) -> float:
        """See `activation_error`."""
        lost = self._held(None) - self._sample.rows
        return self._noise(_product(lost, w) for w in self._kernels)

    def _noise(self, noises: Iterable[np.ndarray]) -> float:
        """Of the outputs of each weight [groups, n, outputs * taps], averaged over the weights."""
        total = 0.0
        for noise, weights in zip(noises, self._per_output, strict=True):
            powers = np.square(noise, dtype=np.float64).mean(axis=1)
            total += float((powers * weights).sum())
        return total / len(self._kernels)

    def _divided(self, s: np.ndarray | None, fmt: NumberFormat) -> tuple[ActivationSample, Scale]:
        sample = self._sample if s is None else self._sample.divided(s)
        low, high = float(sample.low.min()), float(sample.high.max())
        return sample, scales.activation_scale(low, high, fmt, self._formats.carrier)

    def _held(self, s: np.ndarray | None) -> np.ndarray:
        """The rows divided by `s`, as the product reads them."""
        fmt = self._formats.activation
        if fmt is None or self._formats.weight_only:
            rows = self._sample.rows if s is None else self._sample.rows / s
            return rows if fmt is None else run_time_blocks.rounded(rows, fmt)
        sample, scale = self._divided(s, fmt)
        return scales.dequantize(scales.quantize(sample.rows, scale, fmt), scale, fmt=fmt)


def rounded(kernel: np.ndarray, formats: Formats) -> np.ndarray:
    """A weight [groups, inputs, outputs, taps] after rounding to nearest and dequantization."""
    count, inputs, outputs, taps = kernel.shape
    fmt = formats.weight
    matrix = kernel.transpose(1, 3, 0, 2).reshape(inputs * taps, count * outputs)
    axis = None if fmt.granularity == "tensor" else 1
    scale = scales.weight_scale(matrix, axis, fmt, formats.carrier)
    held = scales.dequantize(scales.quantize(matrix, scale, fmt, axis), scale, axis, fmt)
    return held.reshape(inputs, taps, count, outputs).transpose(2, 0, 3, 1)


def _product(rows: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """[groups, n, outputs * taps], float32."""
    count, inputs, outputs, taps = kernel.shape
    parts = rows.reshape(-1, count, inputs).swapaxes(0, 1)
    return np.asarray(parts @ kernel.reshape(count, inputs, outputs * taps))


def _kernel(w: np.ndarray) -> np.ndarray:
    return w[None, :, :, None] if w.ndim == 2 else w


def _thinned(
    sample: ActivationSample, kernels: Sequence[np.ndarray], products: int
) -> tuple[ActivationSample, list[np.ndarray]]:
    """Fewer output channels and rows, at equal distances, if all of them would take too long."""
    parts = []
    for w in map(_kernel, kernels):
        count, inputs, outputs, taps = w.shape
        chosen = _spread(outputs, products // _LEAST_ROWS // max(count * inputs * taps, 1))
        parts.append(w[:, :, chosen] if len(chosen) < outputs else w)
    rows = _spread(len(sample.rows), products // max(sum(w.size for w in parts), 1))
    if len(rows) < len(sample.rows):
        sample = replace(sample, rows=sample.rows[rows], seen=sample.seen or len(sample.rows))
    return sample, parts


def _spread(size: int, most: int) -> np.ndarray:
    """At most `most` of so many indices, but at least as many as the fewest rows."""
    return np.linspace(0, size - 1, min(size, max(most, _LEAST_ROWS))).astype(int)


def _tied(largest: np.ndarray, ties: np.ndarray | None) -> np.ndarray:
    if ties is None:
        return largest
    shared = np.zeros(int(ties.max()) + 1)
    np.maximum.at(shared, ties, largest)
    return np.asarray(shared[ties])


def _floored(largest: np.ndarray) -> np.ndarray:
    top = float(largest.max(initial=0.0))
    return np.maximum(largest, top * _LEAST_SHARE) if top else np.ones_like(largest)
