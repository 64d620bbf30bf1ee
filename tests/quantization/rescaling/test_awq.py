"""AWQ: the factors are those of a plain search, and what they promise holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.errors import InputRefused
from optkit.precisions import NumberFormat
from optkit.quantization.rescaling.awq import awq, factors
from optkit.quantization.rounding.gptq import output_error
from optkit.quantization.rounding.rtn import round_to_nearest

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


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 50))
def test_it_finds_what_a_plain_search_finds(seed: int) -> None:
    w, x = layer(64, 24, seed)
    found = awq([w], INT4, np.float16, rows=x, clip=False)
    alpha, error = plain_search(w, x, 20)
    assert found.alpha == alpha and found.error == pytest.approx(error, rel=1e-4)
    assert found.plain_error == pytest.approx(
        lost(w, round_to_nearest(w, INT4, np.float16).dequantize(), x), rel=1e-4
    )


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 50), st.booleans())
def test_scaled_and_clipped_weights_lose_less(seed: int, by_moments: bool) -> None:
    w, x = layer(70, 24, seed)  # a last block of 6
    moments = x.T @ x / len(x)
    data = {"moments": moments} if by_moments else {"rows": x}
    found = awq([w], INT4, np.float16, **data)
    (q,) = found.quantized
    back = q.dequantize() / found.factors[:, None]
    assert found.error == pytest.approx(lost(w, back, x), rel=1e-3)
    assert found.error == pytest.approx(output_error(back - w, moments), rel=1e-3)
    assert q.error == found.error < 0.9 * found.plain_error
    unclipped = awq([w], INT4, np.float16, **data, clip=False)
    assert unclipped.alpha == found.alpha and found.error <= unclipped.error


def test_weights_of_one_input_share_the_factors() -> None:
    (a, x), (b, _) = layer(64, 24, seed=1), layer(64, 40, seed=2)
    found = awq([a, b], INT4, np.float16, rows=x)
    backs = [q.dequantize() / found.factors[:, None] for q in found.quantized]
    errors = [lost(w, back, x) for w, back in zip((a, b), backs, strict=True)]
    assert [q.error for q in found.quantized] == pytest.approx(errors, rel=1e-3)
    assert found.error == pytest.approx(sum(errors), rel=1e-3)


def test_the_product_is_unchanged_before_rounding() -> None:
    w, x = layer(64, 8)
    f = awq([w], INT4, np.float16, rows=x).factors
    assert f.dtype == np.float32 and len(np.unique(f)) > 2
    assert (x / f) @ (w * f[:, None]) == pytest.approx(x @ w, rel=1e-3, abs=1e-4)


def test_where_scaling_cannot_help_the_factors_are_one() -> None:
    exact = np.random.default_rng(0).integers(-7, 8, (64, 8)).astype(np.float32)
    exact[::32] = 7  # every block's scale is 1, and no rounding is left
    found = awq([exact], INT4, np.float16, rows=layer(64, 8)[1])
    assert found.alpha == 0 and (found.factors == 1).all() and found.error == 0


def test_known_magnitudes_take_the_place_of_the_rows_own() -> None:
    w, x = layer(64, 8)
    magnitude = np.full(64, 3.0)
    found = awq([w], INT4, np.float16, rows=x, magnitude=magnitude, clip=False)
    assert (found.factors == 1).all()  # alike: no factor differs from another


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
    found = awq([w], INT4, np.float32, rows=x, ties=ties, clip=False)
    groups = found.factors.reshape(16, 4)
    assert (groups == groups[:, :1]).all() and len(np.unique(found.factors)) > 8
    f = found.factors[:, None]
    back = round_to_nearest(w * f, INT4, np.float32).dequantize() / f
    assert found.error == pytest.approx(lost(w, back, x), rel=1e-3)
    assert found.error < found.plain_error


def test_no_data_is_refused() -> None:
    with pytest.raises(InputRefused, match="needs rows or second moments"):
        awq([layer(32, 4)[0]], INT4, np.float16)
