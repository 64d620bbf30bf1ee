"""The measure of noise in the outputs of a product: each output channel relative to itself.

    1/N · Σ_n  E[(ŷ_n - y_n)²] / Var[y_n]            over the N output channels

A sum over all channels would be another measure: few channels of a trained transformer can be a
thousand times larger than the others, and so can few tokens (Sun et al. 2024, "Massive Activations
in Large Language Models", arXiv:2402.17762). The sum would not see the others, which a
normalization makes large again. For the same reason massive rows do not count in the variance.
Constant parts of a channel carry no information, so the variance counts, not the power.
"""

from __future__ import annotations

import numpy as np

LEAST_DB = 28.0
"""What activations with one scale must leave of a product, and together of the outputs."""
ONE_TERM = 10 ** (-LEAST_DB / 10)
"""The most noise that the products of an activation in one term may have, over their power. In a
sentence encoder (all-mpnet-base-v2) the inputs of the second product of most feed-forward blocks
have 19 to 27 dB even when they are smoothed, because few values are up to sixty times the others;
all other products have 30 dB and more."""
OF_MODEL = ONE_TERM
"""The same at the outputs of the model. In that encoder 99 % of the nearest neighbours stay with
it; 35 dB kept 98 %, before outlier channels were split, at 0.7 times the speed."""
OF_CONVOLUTIONS = 10**-2
"""The most noise at the outputs of the model by integer convolutions whose results floats read: 20
dB, below which an error usually matters (`benchmarking.doubts`). A finer product costs little, but
a convolution in floats is two to four times as slow: in a pitch detector (CREPE) one convolution
takes most of the time, and its rounding leaves between 20 and 25 dB."""
_MASSIVE = 16.0
"""Times the median power of a row from which on it is massive."""
_LEAST = 0.01
"""Share of the median variance that is added to each: a channel that hardly moves has less
weight."""


def channel_weights(outputs: np.ndarray) -> np.ndarray:
    """By what the noise power of each output channel is multiplied, so that the sum over all
    channels is the noise relative to the signal: 0 exact, 1 as large as the signal.

    outputs: exact products, rows on the axis before the last, channels on the last and any others.
    Returns float64 of the same shape without the rows. If all channels are constant, as those of a
    single row, their power is the signal.
    """
    variance = _of_ordinary_rows(outputs)
    if not variance.any():
        variance = np.square(outputs, dtype=np.float64).mean(axis=-2)
    padded = variance + _LEAST * np.median(variance)
    shares = np.where(padded > 0, 1 / np.maximum(padded, 1e-300), 0.0)
    return np.asarray(shares / max(variance.size, 1))


def _of_ordinary_rows(outputs: np.ndarray) -> np.ndarray:
    """The variance of each channel over the rows that are not massive."""
    variance = outputs.var(axis=-2, dtype=np.float64)
    scale = np.sqrt(np.where(variance > 0, variance, 1.0)).astype(outputs.dtype)
    powers = np.square(outputs / np.expand_dims(scale, -2)).sum(axis=-1)  # [..., rows]
    while powers.ndim > 1:
        powers = powers.sum(axis=0)
    middle = np.median(powers)
    ordinary = powers <= _MASSIVE * middle
    if ordinary.all() or not middle:
        return np.asarray(variance)
    return np.asarray(outputs[..., ordinary, :].var(axis=-2, dtype=np.float64))
