"""Bias correction: give back the mean that rounding takes from a layer's output.

    y - ŷ = x W - x̂ Ŵ        Δb = E[x W] - E[x̂ Ŵ] = E[x] W - E[x̂] Ŵ        [N]

(Nagel et al. 2019, "Data-free quantization", arXiv:1906.04721, section 4.2.) Local: each layer is
corrected for its own rounding, its input taken as exact. The rows x of a convolution are patches of
its input, zeros of the padding included: the paper takes E[x] to be the same at every offset of the
kernel, which holds neither at borders nor for strides. Pure maths.
"""

from __future__ import annotations

import numpy as np


def correction(
    rows: np.ndarray, w: np.ndarray, rows_hat: np.ndarray, w_hat: np.ndarray
) -> np.ndarray:
    """float32 [N] to add to the bias: the mean error of rows_hat @ w_hat against rows @ w.

    `rows`, `rows_hat` [n, K]: a sample and what its codes say; `w`, `w_hat` [K, N] likewise. Or of
    groups: rows [n, groups, K] and weights [groups, K, N], for [groups, N].
    """
    error: np.ndarray = _mean_product(rows, w) - _mean_product(rows_hat, w_hat)
    return error.astype(np.float32)


def _mean_product(rows: np.ndarray, w: np.ndarray) -> np.ndarray:
    mean: np.ndarray = rows.mean(axis=0, dtype=np.float64)
    product: np.ndarray = np.einsum("...k,...kn->...n", mean, w.astype(np.float64))
    return product
