"""The measure of noise in the outputs of a product: each output channel relative to itself.

    1/N · Σ_n  E[(ŷ_n - y_n)²] / Var[y_n]            over the N output channels

A sum over all channels would be another measure: few channels of a trained transformer can be a
thousand times larger than the others (Sun et al. 2024, "Massive Activations in Large Language
Models", arXiv:2402.17762), and the sum would not see the others, which a normalization makes large
again. Constant parts of a channel carry no information, so the variance counts, not the power.
"""

from __future__ import annotations

import numpy as np

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
    variance = outputs.var(axis=-2, dtype=np.float64)
    if not variance.any():
        variance = np.square(outputs, dtype=np.float64).mean(axis=-2)
    padded = variance + _LEAST * np.median(variance)
    return np.where(padded > 0, 1 / np.maximum(padded, 1e-300), 0.0) / max(variance.size, 1)
