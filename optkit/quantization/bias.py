"""Bias correction: give back the mean that rounding takes from a layer's output.

    y - ŷ = x W - x̂ Ŵ        Δb = E[x W] - E[x̂ Ŵ] = E[x] W - E[x̂] Ŵ        [N]

(Nagel et al. 2019, "Data-free quantization", arXiv:1906.04721, section 4.2.) Local: each layer is
corrected for its own rounding, its input taken as exact. Also here: what two-term activations,
q(x) + q(x - dq(q(x))), gain at a layer. Pure maths; w [K, N], x [n, K].
"""

from __future__ import annotations

from math import log10
from typing import NamedTuple

import numpy as np

from optkit.precision import NumberFormat
from optkit.quantization import scales
from optkit.quantization.scales import Scale


def correction(
    rows: np.ndarray, w: np.ndarray, rows_hat: np.ndarray, w_hat: np.ndarray
) -> np.ndarray:
    """float32 [N] to add to the bias: the mean error of rows_hat @ w_hat against rows @ w.

    `rows`, `rows_hat` [n, K]: a sample and what its codes say; `w`, `w_hat` [K, N] likewise.
    """
    return of_means(_mean(rows), w, _mean(rows_hat), w_hat)


def of_means(
    mean: np.ndarray, w: np.ndarray, mean_hat: np.ndarray, w_hat: np.ndarray
) -> np.ndarray:
    """`correction` from the means [K] of the activation and of what its codes say."""
    found: np.ndarray = mean @ w.astype(np.float64) - mean_hat @ w_hat.astype(np.float64)
    return found.astype(np.float32)


def of_convolution(
    mean: np.ndarray, w: np.ndarray, mean_hat: np.ndarray, w_hat: np.ndarray
) -> np.ndarray:
    """`correction` [O] for a convolution, from the means [I] of its input's channels.

    `w`, `w_hat` [O, I/groups, *kernel]. Exact without padding; with it, elements at the border see
    fewer taps and get too much: by the share of taps that lie outside, on average.
    Not for many layers at once: each layer's input changes with the corrections before it. Correct
    one, take the means of the next with it, and so on (section 4.2 of the paper).
    """
    count = mean.size // w.shape[1]
    outputs = w.shape[0] // count

    def summed(kernel: np.ndarray, channels: np.ndarray) -> np.ndarray:
        taps = kernel.reshape(count, outputs, kernel.shape[1], -1).sum(axis=3, dtype=np.float64)
        found: np.ndarray = np.einsum("goi,gi->go", taps, channels.reshape(count, -1))
        return found.reshape(-1)

    found: np.ndarray = summed(w, mean) - summed(w_hat, mean_hat)
    return found.astype(np.float32)


class TwoTerm(NamedTuple):
    """Noise power over signal power of x W, with one integer product and with two."""

    error_one: float
    error_two: float

    @property
    def gain_db(self) -> float:
        if not self.error_one:
            return 0.0
        return 10.0 * log10(self.error_one / self.error_two) if self.error_two else float("inf")


def two_term(
    rows: np.ndarray,
    w: np.ndarray,
    w_hat: np.ndarray,
    scale: Scale,
    fmt: NumberFormat,
    rest: Scale | None = None,
) -> TwoTerm:
    """What a second term gains: (q(x) + q(x - dq(q(x)))) Ŵ against q(x) Ŵ.

    `scale`: of the activation (rank 0); `rest`: of what it leaves, by default half a step to both
    sides. The weight's own error `w_hat` - `w` stays, and bounds the gain.
    """
    if rest is None:
        half = float(scale.scale) / 2
        rest = scales.activation_scale(-half, half, fmt, np.float32)
    wanted = rows @ w
    first = _held(rows, scale, fmt)
    both = first + _held(rows - first, rest, fmt)
    power = float(np.square(wanted, dtype=np.float64).sum()) or 1.0
    errors = (
        float(np.square(x_hat @ w_hat - wanted, dtype=np.float64).sum()) / power
        for x_hat in (first, both)
    )
    return TwoTerm(*errors)


def _held(x: np.ndarray, scale: Scale, fmt: NumberFormat) -> np.ndarray:
    return scales.dequantize(scales.quantize(x, scale, fmt), scale, fmt=fmt)


def _mean(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = rows.mean(axis=0, dtype=np.float64)
    return found
