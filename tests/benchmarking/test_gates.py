from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.benchmarking.accuracy import drop, from_samples
from optkit.benchmarking.gates import judge
from optkit.measurement import Difference, Fidelity, Interval, Latency, Score, Verdict
from optkit.runtime import Evidence

SIMULATED, MEASURED, PREDICTED = Evidence.SIMULATED, Evidence.MEASURED, Evidence.PREDICTED


@dataclass(frozen=True)
class Limits:
    max_drop: float | None = None
    min_sqnr: float | None = None
    max_latency_ms: float | None = None
    min_speedup: float | None = None
    min_throughput: float | None = None
    max_bytes: int | None = None
    accept: tuple[str, ...] = ()


NO_DROP = Difference(0.0, Interval(0.0, 0.0), SIMULATED)


def scores(lost: int, gained: int, n: int) -> tuple[Score, Score]:
    baseline, candidate = np.ones(n), np.ones(n)
    candidate[:lost] = 0
    baseline[lost : lost + gained] = 0
    return (
        from_samples(baseline, metric="top1", evidence=SIMULATED),
        from_samples(candidate, metric="top1", evidence=SIMULATED),
    )


def judge_flips(limit: float, lost: int, gained: int, n: int) -> Verdict:
    pair = scores(lost, gained, n)
    return judge(Limits(max_drop=limit), drop=drop(*pair), scores=pair)


@pytest.mark.parametrize(
    ("limit", "lost", "gained", "n", "outcome"),
    [
        (0.01, 0, 0, 899, "pass"),  # upper end 0.43 %
        (0.01, 0, 0, 360, "inconclusive"),  # upper end 1.06 %
        (0.001, 0, 0, 899, "inconclusive"),
        (-0.05, 0, 0, 899, "fail"),  # lower end -0.43 % is beyond -5 %
        (0.01, 40, 2, 899, "fail"),
        (0.01, 5, 1, 899, "inconclusive"),  # the point estimate, 0.44 %, would have passed
    ],
)
def test_the_interval_decides_a_drop(
    limit: float, lost: int, gained: int, n: int, outcome: str
) -> None:
    verdict = judge_flips(limit, lost, gained, n)
    assert verdict.verdict == verdict.rows[0].outcome == outcome
    assert bool(verdict.reasons) == (outcome != "pass")


def test_an_inconclusive_drop_says_how_many_samples_would_decide() -> None:
    (reason,) = judge_flips(0.01, 0, 0, 360).reasons
    assert "0.00 points (95 % interval -1.06 to 1.06 points)" in reason
    assert "about 381 samples would decide it at the observed rates (360 were used)" in reason


def test_a_drop_on_its_limit_is_said_to_be_undecidable() -> None:
    assert "no realistic number of samples" in judge_flips(0.01, 2, 0, 200).reasons[0]


def test_a_relative_drop_is_told_in_percent() -> None:
    seen = Difference(0.004, Interval(-0.001, 0.02), SIMULATED)
    (reason,) = judge(Limits(max_drop=0.01), drop=seen).reasons
    assert reason == (
        "max_drop: 0.40 % (95 % interval -0.10 to 2.00 %) may or may not keep the limit of 1.00 %"
    )


@given(st.floats(-0.1, 0.1), st.floats(0, 0.1), st.floats(0, 0.1), st.floats(-0.2, 0.2))
def test_a_drop_gate_never_passes_nor_fails_inside_its_interval(
    value: float, below: float, above: float, limit: float
) -> None:
    seen = Difference(value, Interval(value - below, value + above), SIMULATED)
    outcome = judge(Limits(max_drop=limit), drop=seen).verdict
    if value + above <= limit:
        assert outcome == "pass"
    elif value - below > limit:
        assert outcome == "fail"
    else:
        assert outcome == "inconclusive"


def fidelity(sqnr: float | None) -> Fidelity:
    return Fidelity(SIMULATED, "fp32", sqnr, 0.999, 0.01, 64)


@pytest.mark.parametrize(
    ("limits", "sqnr", "outcome"),
    [
        (Limits(max_drop=0.01), 30.0, "inconclusive"),
        (Limits(), 30.0, "inconclusive"),
        (Limits(min_sqnr=20.0), 30.0, "inconclusive"),
        (Limits(min_sqnr=20.0), 10.0, "fail"),
        (Limits(max_drop=0.01, min_sqnr=20.0), 10.0, "fail"),
    ],
)
def test_without_an_evaluation_task_fidelity_can_only_fail(
    limits: Limits, sqnr: float, outcome: str
) -> None:
    verdict = judge(limits, fidelity=fidelity(sqnr))
    assert verdict.verdict == outcome
    assert any("no evaluation task" in reason for reason in verdict.reasons)


def test_fidelity_beside_a_drop() -> None:
    limits = Limits(max_drop=0.01, min_sqnr=20.0)
    assert judge(limits, drop=NO_DROP, fidelity=fidelity(20.0)).verdict == "pass"
    assert judge(limits, drop=NO_DROP, fidelity=fidelity(None)).verdict == "pass"
    assert judge(limits, drop=NO_DROP).verdict == "inconclusive"
    (reason,) = judge(limits, drop=NO_DROP, fidelity=fidelity(19.9)).reasons
    assert reason == "min_sqnr: 19.9 dB breaks the limit of 20.0 dB"
    wide = replace(fidelity(21.0), ci95=Interval(19.0, 22.0))
    verdict = judge(limits, drop=NO_DROP, fidelity=wide)
    assert verdict.verdict == "inconclusive"
    assert "(95 % interval 19.0 to 22.0 dB) may or may not keep" in verdict.reasons[0]


def measured(p50: float, interval: Interval) -> Latency:
    return Latency(MEASURED, p50, 8, 8e3 / p50, ci95_ms=interval)


def predicted(p50: float, band: Interval) -> Latency:
    return Latency(PREDICTED, p50, 8, 8e3 / p50, band=band)


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        (Limits(max_latency_ms=2.5), "pass"),
        (Limits(max_latency_ms=2.0), "inconclusive"),
        (Limits(max_latency_ms=1.5), "fail"),
        (Limits(min_throughput=3000), "pass"),  # 8 per 2.0 (1.8 to 2.2) ms = 3636 to 4444 /s
        (Limits(min_throughput=4000), "inconclusive"),
        (Limits(min_throughput=5000), "fail"),
        (Limits(min_speedup=1.5), "pass"),
        (Limits(min_speedup=2.0), "inconclusive"),
        (Limits(min_speedup=2.5), "fail"),
    ],
)
@pytest.mark.parametrize("accepted", [False, True])
def test_timing_gates_judge_what_is_measured_or_accepted(
    limits: Limits, outcome: str, accepted: bool
) -> None:
    known = {
        "latency": measured(2.0, Interval(1.8, 2.2)),
        "speedup": Difference(2.0, Interval(1.9, 2.1), MEASURED),
    }
    guessed = {
        "latency": predicted(2.0, Interval(1.8, 2.2)),
        "speedup": Difference(2.0, Interval(1.9, 2.1), PREDICTED),
    }
    assert judge(limits, drop=NO_DROP, **known).verdict == outcome  # type: ignore[arg-type]
    trusting = Limits(**{**limits.__dict__, "accept": ("predicted",) if accepted else ()})
    verdict = judge(trusting, drop=NO_DROP, **guessed)  # type: ignore[arg-type]
    assert verdict.verdict == (outcome if accepted else "inconclusive")
    if not accepted:
        assert "is predicted, not measured" in verdict.reasons[0]
        assert "gates.accept: [predicted]" in verdict.reasons[0]


def test_a_timing_gate_without_a_latency_is_inconclusive() -> None:
    verdict = judge(Limits(max_latency_ms=1.0, min_speedup=1.0, min_throughput=1.0), drop=NO_DROP)
    assert [row.outcome for row in verdict.rows] == ["inconclusive"] * 3


@pytest.mark.parametrize(
    ("size", "outcome"), [(1000, "pass"), (1001, "fail"), (None, "inconclusive")]
)
def test_the_size_gate(size: int | None, outcome: str) -> None:
    assert judge(Limits(max_bytes=1000), drop=NO_DROP, size_bytes=size).verdict == outcome


def test_one_failure_outweighs_everything() -> None:
    limits = Limits(max_drop=0.01, max_latency_ms=1.0, max_bytes=10)
    verdict = judge(limits, drop=NO_DROP, size_bytes=11)
    assert [row.outcome for row in verdict.rows] == ["pass", "inconclusive", "fail"]
    assert verdict.verdict == "fail"
    assert len(verdict.reasons) == 2


def test_no_gate_at_all_passes_where_accuracy_is_known() -> None:
    assert judge(Limits(), drop=NO_DROP) == Verdict("pass", (), ())


def test_the_verdict_is_plain_data() -> None:
    data: Any = judge_flips(0.01, 0, 0, 899).to_json()
    assert data["rows"][0]["evidence"] == "simulated"
