"""Bias correction: restore the mean of a layer's output, which rounding changes.

    y - ŷ = x W - x̂ Ŵ        Δb = E[x W] - E[x̂ Ŵ] = E[x] W - E[x̂] Ŵ        [N]

(Nagel et al. 2019, "Data-free quantization", arXiv:1906.04721, section 4.2.) The correction is
local: each layer is corrected for its own rounding, with an exact input. The rows x of a
convolution are patches of its input, including the zeros of the padding. The paper assumes that
E[x] is the same at every offset of the kernel, which is wrong at borders and for strides.
"""

from __future__ import annotations

import numpy as np

_LARGEST = float(np.finfo(np.float32).max)


def correction(
    rows: np.ndarray, w: np.ndarray, rows_hat: np.ndarray, w_hat: np.ndarray
) -> np.ndarray:
    """float32 [N] to add to the bias: the mean error of rows_hat @ w_hat compared with rows @ w. An
    output whose error is beyond float32 (a weight near 1e38) is not corrected.

    rows, rows_hat [n, K]: a sample, and its dequantized codes; w, w_hat [K, N]: the same for the
    weight. For groups: rows [n, groups, K] and weights [groups, K, N] give [groups, N].
    """
    error: np.ndarray = _mean_product(rows, w) - _mean_product(rows_hat, w_hat)
    return np.where(np.abs(error) <= _LARGEST, error, 0.0).astype(np.float32)


def _mean_product(rows: np.ndarray, w: np.ndarray) -> np.ndarray:
    mean: np.ndarray = rows.mean(axis=0, dtype=np.float64)
    product: np.ndarray = np.einsum("...k,...kn->...n", mean, w.astype(np.float64))
    return product
