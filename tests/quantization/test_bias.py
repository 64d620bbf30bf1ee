"""Bias correction gives back the mean; a second term takes the activation's rounding away."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optkit.precision import NumberFormat
from optkit.quantization import bias, scales

U8 = NumberFormat("uint8", "tensor", symmetric=False)
S8 = NumberFormat("int8", "tensor", symmetric=True)
W4 = NumberFormat("int4", "channel", symmetric=True)
W8 = NumberFormat("int8", "channel", symmetric=True)


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
    delta = bias.correction(x, w, x_hat, w_hat)
    assert delta.dtype == np.float32 and delta.shape == (outputs,)
    left = (x @ w - (x_hat @ w_hat + delta)).mean(axis=0)
    np.testing.assert_allclose(left, 0, atol=1e-4)


def test_a_correction_helps_where_the_input_is_not_centred() -> None:
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((4096, 64)) + 1, 0).astype(np.float32)
    w = rng.standard_normal((64, 32)).astype(np.float32)
    x_hat, w_hat = held(x, U8), held(w, W4, 1)
    delta = bias.correction(x[:512], w, x_hat[:512], w_hat)
    plain, corrected = (np.square(x @ w - x_hat @ w_hat - d).mean() for d in (0, delta))
    assert corrected < plain / 2


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_convolution_without_padding_is_corrected_exactly(groups: int) -> None:
    rng = np.random.default_rng(groups)
    x = np.maximum(rng.standard_normal((8, 6, 9, 9)) + 0.5, 0).astype(np.float32)
    w = rng.standard_normal((12, 6 // groups, 3, 3)).astype(np.float32)
    x_hat, w_hat = held(x, U8), held(w, W4, 0)

    def conv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return torch.conv2d(torch.tensor(a), torch.tensor(b), groups=groups).numpy()

    # one element per tap and position: every tap sees every element of a large image alike, so
    # compare with the means over what each tap sees
    wrapped = np.pad(x, ((0, 0), (0, 0), (0, 2), (0, 2)), mode="wrap")
    wrapped_hat = np.pad(x_hat, ((0, 0), (0, 0), (0, 2), (0, 2)), mode="wrap")
    error = (conv(wrapped, w) - conv(wrapped_hat, w_hat)).mean(axis=(0, 2, 3))
    found = bias.of_convolution(x.mean((0, 2, 3)), w, x_hat.mean((0, 2, 3)), w_hat)
    np.testing.assert_allclose(found, error, atol=2e-5)


def test_means_say_what_rows_say() -> None:
    rng = np.random.default_rng(3)
    x, x_hat = rng.standard_normal((2, 40, 7)).astype(np.float32)
    w, w_hat = rng.standard_normal((2, 7, 5)).astype(np.float32)
    np.testing.assert_allclose(
        bias.correction(x, w, x_hat, w_hat),
        bias.of_means(x.mean(0), w, x_hat.mean(0), w_hat),
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("fmt", [U8, S8], ids=["u8", "s8"])
def test_a_second_term_leaves_only_the_weights_error(fmt: NumberFormat) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((256, 32)).astype(np.float32)
    x[:, 3] *= 50  # an outlier channel, for which 8 bits are few
    w = rng.standard_normal((32, 16)).astype(np.float32)
    scale = scales.activation_scale(float(x.min()), float(x.max()), fmt, np.float32)
    exact = bias.two_term(x, w, w, scale, fmt)
    assert exact.error_two < exact.error_one / 1e4  # about 8 bits more
    assert exact.gain_db > 40
    w_hat = held(w, W8, 1)
    found = bias.two_term(x, w, w_hat, scale, fmt)
    only_weights = np.square(x @ w_hat - x @ w).sum() / np.square(x @ w).sum()
    assert found.error_two == pytest.approx(only_weights, rel=0.05)
    assert found.error_two < found.error_one


def test_a_second_term_is_what_the_graph_would_compute() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((16, 8)).astype(np.float32)
    w = rng.standard_normal((8, 4)).astype(np.float32)
    scale = scales.activation_scale(-1.0, 1.0, S8, np.float32)  # clips: more is left than half
    rest = scales.activation_scale(-3.0, 3.0, S8, np.float32)
    found = bias.two_term(x, w, w, scale, S8, rest)
    step, second = 1 / 127, 3 / 127
    first = np.clip(np.rint(x / np.float32(step)), -127, 127) * step
    both = first + np.clip(np.rint((x - first) / second), -127, 127) * second
    power = np.square(x @ w).sum()
    assert found.error_one == pytest.approx(np.square((first - x) @ w).sum() / power, rel=1e-3)
    assert found.error_two == pytest.approx(np.square((both - x) @ w).sum() / power, rel=1e-2)


def test_nothing_to_gain_where_nothing_is_lost() -> None:
    x, w = np.array([[0.0, 1.0], [2.0, 3.0]], np.float32), np.eye(2, dtype=np.float32)
    scale = scales.Scale(np.float32(1.0), np.array(0, np.int8), 0)
    assert bias.two_term(x, w, w, scale, S8).gain_db == 0
