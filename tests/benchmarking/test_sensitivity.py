"""Deviation from recorded outputs, against slow sums and scipy."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy

from optkit.craft.benchmarking import sensitivity
from optkit.craft.benchmarking.sensitivity import divergence, record
from optkit.facts import codec
from optkit.facts.errors import InputRefused
from optkit.facts.measurement import Deviation


class Fixed:
    """A session of one function."""

    inputs: Any = ()
    outputs: Any = ()

    def __init__(self, function: Any) -> None:
        self.function = function

    def run(self, feed: Any) -> Any:
        return self.function(feed)

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...


def feeds(count: int = 5, batch: int = 4) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((batch, 6)).astype(np.float32)} for _ in range(count)]


def noisy(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"y": feed["x"] + np.float32(0.1) * np.sin(31 * feed["x"])}


def test_noise_is_error_power_over_signal_power() -> None:
    recorded = record(Fixed(lambda f: {"y": f["x"]}), feeds(), samples=20)
    found = recorded.deviation(Fixed(noisy))
    x = np.concatenate([f["x"] for f in feeds()]).astype(np.float64)
    error = np.concatenate([noisy(f)["y"] for f in feeds()]).astype(np.float64) - x
    assert found.noise == pytest.approx((error**2).sum() / (x**2).sum(), rel=1e-6)
    assert found.sqnr_db == pytest.approx(-10 * np.log10(found.noise))
    assert found.samples == 20


def test_noise_is_that_of_the_worst_output() -> None:
    """A search that limits the noise of all outputs together would lose the small one."""
    recorded = record(Fixed(lambda f: {"large": 1e3 * f["x"], "y": f["x"]}), feeds(), samples=20)
    found = recorded.deviation(Fixed(lambda f: {"large": 1e3 * f["x"], **noisy(f)}))
    alone = record(Fixed(lambda f: {"y": f["x"]}), feeds(), samples=20).deviation(Fixed(noisy))
    assert found.noise == pytest.approx(alone.noise)


def test_divergence_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    p, q = 5 * rng.standard_normal((2, 3, 7, 11))
    expected = entropy(softmax(p, axis=-1), softmax(q, axis=-1), axis=-1)
    np.testing.assert_allclose(divergence(p, q), expected, rtol=1e-9, atol=1e-15)


def test_masked_logits_count_as_nothing() -> None:
    p, q = np.array([[1.0, 2.0, -np.inf]]), np.array([[1.5, 2.0, -np.inf]])
    np.testing.assert_allclose(divergence(p, q), divergence(p[:, :2], q[:, :2]))


def test_equal_outputs_have_no_noise() -> None:
    recorded = record(Fixed(lambda f: {"y": f["x"]}), feeds(), samples=8)
    found = recorded.deviation(Fixed(lambda f: {"y": f["x"]}))
    assert found == Deviation(0.0, 0.0, 8) and found.sqnr_db is None
    assert codec.from_json(Deviation, codec.to_json(found)) == found


def test_divergence_needs_two_classes() -> None:
    recorded = record(Fixed(lambda f: {"y": f["x"][:, :1]}), feeds(), samples=8)
    assert recorded.deviation(Fixed(lambda f: {"y": noisy(f)["y"][:, :1]})).divergence is None


def test_takes_whole_batches_as_far_as_asked_and_as_memory_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Fixed(lambda f: {"y": f["x"]})
    assert [len(record(session, feeds(), samples=n).feeds) for n in (1, 4, 5, 99)] == [1, 1, 2, 5]
    monkeypatch.setattr(sensitivity, "RECORDED_BYTES", 200)
    assert len(record(session, feeds(), samples=99).feeds) == 2  # 192 bytes each
    monkeypatch.setattr(sensitivity, "RECORDED_BYTES", 1)
    assert len(record(session, feeds(), samples=99).feeds) == 1


def test_a_value_that_is_not_finite_is_refused() -> None:
    recorded = record(Fixed(lambda f: {"y": f["x"]}), feeds(), samples=4)
    with pytest.raises(InputRefused):
        recorded.deviation(Fixed(lambda f: {"y": f["x"] * np.float32(np.nan)}))
