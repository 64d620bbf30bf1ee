from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.benchmarking import regression
from optkit.craft.benchmarking.sweep import best_under, knee
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Interval, Latency


def taking(batch: int, ms: float, ci95: Interval | None = None) -> Latency:
    return Latency(Evidence.MEASURED, ms, batch, 1e3 * batch / ms, ci95_ms=ci95)


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.floats(0.01, 10))
def test_the_knee_is_where_samples_take_as_long_as_the_call(batch: int, each: float) -> None:
    fixed = batch * each  # a + c·n is at its knee for n = a / c
    sweep = [taking(n, fixed + each * n) for n in (1, 2, 4, 8, 16, 32, 64)]
    assert knee(sweep) == batch


def test_the_best_batch_keeps_the_limit_with_all_of_its_interval() -> None:
    sweep = [
        taking(1, 2.0, Interval(1.9, 2.1)),
        taking(8, 4.0, Interval(3.8, 4.3)),
        taking(32, 9.9, Interval(9.5, 10.2)),
    ]
    assert best_under(sweep, 10.0) == 8
    assert best_under(sweep, 10.2) == 32
    assert best_under(sweep, 1.0) is None


def test_a_prediction_keeps_the_limit_with_all_of_its_band() -> None:
    bound = Latency(Evidence.PREDICTED, 2.0, 8, 4e3, band=Interval(2.0, 5.0))
    assert best_under([bound], 4.9) is None
    assert best_under([bound], 5.0) == 8


def speedup(value: float, low: float, high: float) -> Difference:
    return Difference(value, Interval(low, high), Evidence.MEASURED)


def test_a_slowdown_is_the_speedup_turned_over() -> None:
    found = regression.slowdown(speedup(0.8, 0.75, 0.9))
    assert found.value == pytest.approx(0.25)
    assert found.ci95 == pytest.approx((1 / 0.9 - 1, 1 / 0.75 - 1))


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(0.85, 0.90, "fail"), (0.94, 0.97, "inconclusive"), (0.96, 1.10, "pass")],
)
def test_only_a_whole_interval_decides(low: float, high: float, outcome: str) -> None:
    found = regression.slowdown(speedup((low + high) / 2, low, high))
    told, reason = regression.judge(found, 0.05)
    assert told == outcome
    assert "the limit of +5 %" in reason
