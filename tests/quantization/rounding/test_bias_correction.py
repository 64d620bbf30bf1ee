"""Bias correction restores the mean."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.rounding import bias_correction
from optkit.facts.precisions import NumberFormat

U8 = NumberFormat("uint8", "tensor", symmetric=False)
W4 = NumberFormat("int4", "channel", symmetric=True)


def held(x: np.ndarray, fmt: NumberFormat, axis: int | None = None) -> np.ndarray:
    if axis is None:
        scale = scales.activation_scale(float(x.min()), float(x.max()), fmt, np.float32)
    else:
        scale = scales.weight_scale(x, axis, fmt, np.float32)
    return scales.dequantize(scales.quantize(x, scale, fmt, axis), scale, axis, fmt)


@given(st.integers(0, 200), st.integers(1, 50), st.integers(1, 20), st.integers(1, 8))
def test_the_mean_error_of_the_sample_vanishes(seed: int, n: int, k: int, outputs: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.maximum(rng.standard_normal((n, k)), 0).astype(np.float32)
    w = rng.standard_normal((k, outputs)).astype(np.float32)
    x_hat, w_hat = held(x, U8), held(w, W4, 1)
    delta = bias_correction.correction(x, w, x_hat, w_hat)
    assert delta.dtype == np.float32 and delta.shape == (outputs,)
    left = (x @ w - (x_hat @ w_hat + delta)).mean(axis=0)
    np.testing.assert_allclose(left, 0, atol=1e-4)


def test_a_correction_helps_where_the_input_is_not_centred() -> None:
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((4096, 64)) + 1, 0).astype(np.float32)
    w = rng.standard_normal((64, 32)).astype(np.float32)
    x_hat, w_hat = held(x, U8), held(w, W4, 1)
    delta = bias_correction.correction(x[:512], w, x_hat[:512], w_hat)
    plain, corrected = (np.square(x @ w - x_hat @ w_hat - d).mean() for d in (0, delta))
    assert corrected < plain / 2


def test_an_error_beyond_float32_is_not_corrected() -> None:
    rows, w = np.full((4, 2), 8.0, np.float32), np.array([[1e38, 1.0], [0.0, 1.0]], np.float32)
    found = bias_correction.correction(rows, w, rows, np.array([[0, 0.5], [0, 1]], np.float32))
    assert found.tolist() == [0.0, 4.0]
