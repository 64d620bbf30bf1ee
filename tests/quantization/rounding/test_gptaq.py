"""The compensated weight against least squares in float64."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.quantization.rounding.gptaq import compensated

K, N, ROWS = 12, 5, 200


def problem(seed: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, X' [rows, K] and w [K, N]; the errors are in part a function of the inputs."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((ROWS, K)) @ random.standard_normal((K, K))
    mixed = x @ (noise * random.standard_normal((K, K)))
    given = x + mixed + noise * random.standard_normal(x.shape)
    return x, given, random.standard_normal((K, N)).astype(np.float32)


def found(x: np.ndarray, given: np.ndarray, w: np.ndarray, damping: float) -> np.ndarray:
    return compensated(w, given.T @ given / ROWS, given.T @ (x - given) / ROWS @ w, damping)


@given(st.integers(0, 99), st.sampled_from([0.01, 0.1, 0.5]), st.sampled_from([1e-6, 0.01, 0.05]))
def test_it_solves_the_damped_least_squares(seed: int, noise: float, damping: float) -> None:
    x, given, w = problem(seed, noise)
    ridge = np.sqrt(ROWS * damping * np.mean(given**2))
    rows = np.concatenate([given, ridge * np.eye(K)])
    wanted = np.concatenate([x @ w, ridge * w])
    expected = np.linalg.lstsq(rows, wanted)[0]
    np.testing.assert_allclose(found(x, given, w, damping), expected, rtol=1e-4, atol=1e-4)


@given(st.integers(0, 99), st.sampled_from([0.01, 0.1, 0.5]), st.sampled_from([0.01, 0.05]))
def test_the_product_is_never_further_away(seed: int, noise: float, damping: float) -> None:
    x, given, w = problem(seed, noise)
    before, after = (
        float(np.square(given @ v - x @ w).sum()) for v in (w, found(x, given, w, damping))
    )
    assert after <= before * (1 + 1e-6)


def test_inputs_without_errors_change_nothing() -> None:
    x, _, w = problem(0, 0.1)
    np.testing.assert_array_equal(found(x, x, w, 0.01), w)


def test_channels_that_are_zero_keep_their_weights() -> None:
    x, given, w = problem(1, 0.1)
    given[:, 3] = 0
    missing = given.T @ (x - given) @ w / ROWS
    v = compensated(w, given.T @ given / ROWS, missing, 0.01)
    np.testing.assert_array_equal(v[3], w[3])
    assert not np.allclose(v[4], w[4])


def test_inputs_that_are_all_zero_change_nothing() -> None:
    w = problem(2, 0.1)[2]
    nothing = np.zeros((K, K)), np.zeros((K, N))
    np.testing.assert_array_equal(compensated(w, *nothing, 0.01), w)
