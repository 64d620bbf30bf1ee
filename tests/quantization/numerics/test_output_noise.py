"""The measure of noise in the outputs of products, against a plain loop over channels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.quantization.numerics.output_noise import channel_weights
from tests.quantization.workshop import relative_noise


def measured(outputs: np.ndarray, noise: np.ndarray) -> float:
    return float((np.square(noise).mean(axis=-2) * channel_weights(outputs)).sum())


@given(st.integers(0, 1000), st.integers(2, 50), st.integers(1, 12))
def test_it_is_the_mean_over_channels(seed: int, rows: int, channels: int) -> None:
    random = np.random.default_rng(seed)
    outputs = random.standard_normal((rows, channels)) * 10.0 ** random.uniform(-2, 2, channels)
    noise = random.standard_normal((rows, channels))
    assert measured(outputs, noise) == pytest.approx(relative_noise(outputs, outputs + noise))


def test_a_massive_channel_does_not_hide_the_noise_of_the_others() -> None:
    random = np.random.default_rng(0)
    outputs, noise = random.standard_normal((2, 256, 16))
    outputs[:, 3] *= 1000
    assert measured(outputs, noise) == pytest.approx(15 / 16, rel=0.2)
    assert np.square(noise).sum() / np.square(outputs).sum() < 1e-4


def test_massive_rows_do_not_hide_the_noise_of_the_others() -> None:
    random = np.random.default_rng(2)
    outputs, noise = random.standard_normal((2, 256, 16))
    plain = measured(outputs, noise)
    outputs[::50] *= 300
    assert measured(outputs, noise) == pytest.approx(plain, rel=0.1)
    outputs[1:] = 0  # hardly a row that is not: all count
    assert np.isfinite(measured(outputs, noise))


def test_a_constant_part_is_no_signal_and_a_dead_channel_no_reason() -> None:
    random = np.random.default_rng(1)
    outputs, noise = random.standard_normal((2, 256, 8))
    assert measured(outputs + 100.0, noise) == pytest.approx(measured(outputs, noise))
    outputs[:, 2] = 0
    assert measured(outputs, noise) < 100


def test_a_single_row_and_silence_have_finite_weights() -> None:
    row = np.array([[1.0, 2.0]])
    assert measured(row, row) == pytest.approx(1, rel=0.05)
    assert not channel_weights(np.zeros((4, 3))).any()
    assert channel_weights(np.zeros((2, 4, 3))).shape == (2, 3)
