"""AWQ: the factors equal those of a plain search, and have the promised properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.quantization.rescaling.awq import factors, search
from optkit.craft.quantization.rounding.rtn import round_to_nearest
from optkit.facts.precisions import NumberFormat

INT4 = NumberFormat("int4", "block", True, block_size=32)


def layer(k: int, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Weights and rows of an input a few of whose channels are much larger than the others."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((300, k)) @ (np.eye(k) + 0.1 * rng.standard_normal((k, k)))
    x *= np.where(rng.random(k) < 0.1, 12.0, np.exp(0.3 * rng.standard_normal(k)))
    return (rng.standard_normal((k, n)) * 0.05).astype(np.float32), x.astype(np.float32)


def lost(w: np.ndarray, back: np.ndarray, x: np.ndarray) -> float:
    return float(np.square(x.astype(np.float64) @ (back - w)).sum() / len(x))


def plain_search(w: np.ndarray, x: np.ndarray, grid: int) -> tuple[float, float]:
    """alpha and error by the published formula, without clipping."""
    found = []
    for step in range(grid + 1):
        f = np.abs(x).mean(axis=0, dtype=np.float64) ** (step / grid)
        f = (f / np.sqrt(f.max() * f.min())).astype(np.float32)[:, None]
        back = round_to_nearest(w * f, INT4, np.float16).dequantize() / f
        found.append((lost(w, back, x), step / grid))
    error, alpha = min(found)
    return alpha, error


def gain(plain: float, error: float) -> float:
    return 10 * math.log10(plain / error)


def rounded(w: np.ndarray, f: np.ndarray | None, carrier: type = np.float16) -> np.ndarray:
    along = np.float32(1) if f is None else f[:, None]
    return round_to_nearest(w * along, INT4, carrier).dequantize() / along


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 50))
def test_it_finds_what_a_plain_search_finds(seed: int) -> None:
    w, x = layer(64, 24, seed)
    choice = search([w], x, INT4, np.float16)
    alpha, error = plain_search(w, x, 20)
    assert (choice.alpha or 0.0) == alpha
    assert choice.gain_db == pytest.approx(gain(lost(w, rounded(w, None), x), error), abs=1e-3)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 50))
def test_scaled_weights_lose_less(seed: int) -> None:
    w, x = layer(70, 24, seed)  # a last block of 6
    choice = search([w], x, INT4, np.float16)
    error, plain = lost(w, rounded(w, choice.factors), x), lost(w, rounded(w, None), x)
    assert error < 0.95 * plain
    assert choice.gain_db == pytest.approx(gain(plain, error), abs=0.01)


def test_weights_of_one_input_share_the_factors() -> None:
    (a, x), (b, _) = layer(64, 24, seed=1), layer(64, 40, seed=2)
    choice = search([a, b], x, INT4, np.float16)
    error, plain = (sum(lost(w, rounded(w, f), x) for w in (a, b)) for f in (choice.factors, None))
    assert choice.gain_db == pytest.approx(gain(plain, error), abs=0.01)


def test_the_product_is_unchanged_before_rounding() -> None:
    w, x = layer(64, 8)
    f = search([w], x, INT4, np.float16).factors
    assert f is not None and f.dtype == np.float32 and len(np.unique(f)) > 2
    assert (x / f) @ (w * f[:, None]) == pytest.approx(x @ w, rel=1e-3, abs=1e-4)


def test_where_scaling_cannot_help_the_input_is_left() -> None:
    exact = np.random.default_rng(0).integers(-7, 8, (64, 8)).astype(np.float32)
    exact[::32] = 7  # every block's scale is 1, and no rounding is left
    choice = search([exact], layer(64, 8)[1], INT4, np.float16)
    assert choice.factors is None and choice.alpha is None and choice.gain_db == 0


@given(st.floats(0, 1), st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_factors_are_bounded_and_centred(alpha: float, magnitude: list[float]) -> None:
    given_magnitude = np.array(magnitude)
    f = factors(given_magnitude, alpha)
    assert (f >= 2.0**-10).all() and (f <= 2.0**10).all()
    assert (f[given_magnitude == 0] == 1).all()
    if f.max() < 2**10 and f.min() > 2**-10 and (given_magnitude > 0).all():
        assert float(f.max()) * float(f.min()) == pytest.approx(1, rel=1e-3)


def test_tied_channels_share_a_factor_and_are_judged_with_it() -> None:
    w, x = layer(64, 24, seed=3)
    ties = np.arange(64) // 4
    choice = search([w], x, INT4, np.float32, ties)
    assert choice.factors is not None
    groups = choice.factors.reshape(16, 4)
    assert (groups == groups[:, :1]).all() and len(np.unique(choice.factors)) > 8
    f = choice.factors
    error, plain = (lost(w, rounded(w, each, np.float32), x) for each in (f, None))
    assert choice.gain_db == pytest.approx(gain(plain, error), abs=0.01) and error < plain
