from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.benchmarking.accuracy import from_samples
from optkit.craft.benchmarking.gates import judge
from optkit.craft.benchmarking.paired_drop import drop
from optkit.facts.codec import to_json
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import (
    Difference,
    Fidelity,
    Interval,
    Latency,
    Memory,
    OutputFidelity,
    Score,
    Verdict,
)
from optkit.ground.recipe.sections import Limits
from tests.benchmarking.flips import flipped

SIMULATED, MEASURED, PREDICTED = Evidence.SIMULATED, Evidence.MEASURED, Evidence.PREDICTED


def limited(**given: Any) -> Limits:
    return Limits(**{"max_drop": None, **given})


NO_DROP = Difference(0.0, Interval(0.0, 0.0), SIMULATED)


def judge_flips(limit: float, lost: int, gained: int, n: int) -> Verdict:
    pair = flipped(lost, gained, n)
    return judge(limited(max_drop=limit), drop=drop(*pair), scores=pair)


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
    assert "0.00 points (95 % interval -1.06 to 1.06 points, simulated)" in reason
    assert "about 731 samples in all would decide it (probability 80 %; 360 were used)" in reason


def test_a_drop_on_its_limit_needs_many_samples() -> None:
    (reason,) = judge_flips(0.01, 2, 0, 200).reasons
    advised = re.search(r"about ([\d,]+) samples in all would decide it", reason)
    assert advised is not None and int(advised[1].replace(",", "")) > 20_000


def test_a_relative_drop_is_reported_in_percent() -> None:
    seen = Difference(0.004, Interval(-0.001, 0.02), SIMULATED)
    (reason,) = judge(limited(max_drop=0.01), drop=seen).reasons
    assert reason == (
        "max_drop: 0.40 % (95 % interval -0.10 to 2.00 %, simulated) may or may not keep the "
        "limit of 1.00 %"
    )


@given(st.floats(-0.1, 0.1), st.floats(0, 0.1), st.floats(0, 0.1), st.floats(-0.2, 0.2))
def test_a_drop_gate_never_passes_nor_fails_inside_its_interval(
    value: float, below: float, above: float, limit: float
) -> None:
    seen = Difference(value, Interval(value - below, value + above), SIMULATED)
    outcome = judge(limited(max_drop=limit), drop=seen).verdict
    if value + above <= limit:
        assert outcome == "pass"
    elif value - below > limit:
        assert outcome == "fail"
    else:
        assert outcome == "inconclusive"


def fidelity(sqnr: float | None) -> Fidelity:
    return Fidelity(SIMULATED, "fp32", sqnr, 0.999, 0.01, 64)


def test_outputs_that_are_all_zero_decide_nothing() -> None:
    zero = replace(fidelity(30.0), sqnr_db=None, all_zero=True)
    verdict = judge(limited(min_sqnr=20.0), fidelity=zero)
    assert verdict.verdict == "inconclusive" and "nothing to compare" in verdict.reasons[0]
    equal = judge(limited(min_sqnr=20.0), fidelity=replace(zero, all_zero=None))
    assert "nothing to compare" not in str(equal) and "bit-equal" in str(equal)


@pytest.mark.parametrize(
    ("limits", "sqnr", "outcome"),
    [
        (limited(max_drop=0.01), 30.0, "inconclusive"),
        (limited(), 30.0, "inconclusive"),
        (limited(min_sqnr=20.0), 30.0, "inconclusive"),
        (limited(min_sqnr=20.0), 10.0, "fail"),
        (limited(max_drop=0.01, min_sqnr=20.0), 10.0, "fail"),
    ],
)
def test_without_an_evaluation_task_fidelity_can_only_fail(
    limits: Limits, sqnr: float, outcome: str
) -> None:
    verdict = judge(limits, fidelity=fidelity(sqnr))
    assert verdict.verdict == outcome
    assert any("no evaluation task" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(("sqnr", "told"), [(4.5, True), (19.9, True), (20.0, False)])
def test_without_a_task_a_low_fidelity_is_reported(sqnr: float, told: bool) -> None:
    verdict = judge(limited(max_drop=0.01), fidelity=fidelity(sqnr))
    assert verdict.verdict == "inconclusive"
    assert any(f"{sqnr:.1f} dB" in reason for reason in verdict.reasons) == told


@pytest.mark.parametrize(("sqnr", "share"), [(14.0, "20%"), (6.0, "50%")])
def test_a_low_fidelity_is_told_as_a_share_of_amplitudes(sqnr: float, share: str) -> None:
    reasons = judge(limited(max_drop=0.01), fidelity=fidelity(sqnr)).reasons
    assert any(f"the error is {share} of the outputs" in reason for reason in reasons)


def test_a_low_fidelity_is_no_doubt_where_a_task_or_a_gate_judges_it() -> None:
    judged = judge(limited(max_drop=0.01), drop=NO_DROP, fidelity=fidelity(4.5))
    assert judged.verdict == "pass" and not judged.reasons
    wanted = judge(limited(min_sqnr=4.0), fidelity=fidelity(4.5))
    assert not any("4.5 dB" in reason for reason in wanted.reasons)
    assert judge(limited(), fidelity=None).verdict == "inconclusive"


def test_fidelity_beside_a_drop() -> None:
    limits = limited(max_drop=0.01, min_sqnr=20.0)
    assert judge(limits, drop=NO_DROP, fidelity=fidelity(20.0)).verdict == "pass"
    assert judge(limits, drop=NO_DROP, fidelity=fidelity(None)).verdict == "pass"
    assert judge(limits, drop=NO_DROP).verdict == "inconclusive"
    (reason,) = judge(limits, drop=NO_DROP, fidelity=fidelity(19.9)).reasons
    assert reason == "min_sqnr: 19.9 dB (simulated) breaks the limit of 20.0 dB"
    wide = replace(fidelity(21.0), ci95=Interval(19.0, 22.0))
    verdict = judge(limits, drop=NO_DROP, fidelity=wide)
    assert verdict.verdict == "inconclusive"
    assert "(95 % interval 19.0 to 22.0 dB, simulated) may or may not keep" in verdict.reasons[0]


SEG = OutputFidelity("seg", sqnr_db=3.0, cosine=0.7, ci95=Interval(2.5, 3.5))
BOXES = OutputFidelity("pred", "channels 0 to 3", sqnr_db=50.0, cosine=1.0)


def heads(*rows: OutputFidelity, pooled: float = 45.0) -> Fidelity:
    return replace(fidelity(pooled), outputs=rows)


def test_the_worst_output_is_judged_and_named() -> None:
    limits = limited(min_sqnr=30.0)
    (row,) = judge(limits, drop=NO_DROP, fidelity=heads(BOXES, SEG)).rows
    assert (row.outcome, row.value, row.ci95) == ("fail", 3.0, SEG.ci95)
    assert row.reason.endswith("breaks the limit of 30.0 dB; the worst is output 'seg'")
    (row,) = judge(limits, drop=NO_DROP, fidelity=heads(SEG)).rows
    assert row.reason.endswith("breaks the limit of 30.0 dB")  # there is no other
    good = replace(SEG, sqnr_db=31.0, ci95=None)
    assert judge(limits, drop=NO_DROP, fidelity=heads(BOXES, good)).verdict == "pass"
    equal = replace(SEG, sqnr_db=None)
    (row,) = judge(limits, drop=NO_DROP, fidelity=heads(equal, BOXES)).rows
    assert (row.outcome, row.value) == ("pass", 50.0)


@pytest.mark.parametrize(("sqnr", "told"), [(9.9, True), (10.0, False)])
def test_a_task_that_passes_does_not_speak_for_an_output_that_is_lost(
    sqnr: float, told: bool
) -> None:
    limits = limited(max_drop=0.01)
    found = heads(BOXES, replace(SEG, sqnr_db=sqnr))
    verdict = judge(limits, drop=NO_DROP, fidelity=found)
    assert verdict.verdict == ("inconclusive" if told else "pass")
    assert [reason.startswith("output 'seg' has an SQNR of 9.9 dB") for reason in
            verdict.reasons] == [True] * told  # fmt: skip
    alone = heads(replace(SEG, sqnr_db=sqnr))
    assert judge(limits, drop=NO_DROP, fidelity=alone).verdict == "pass"  # the task reads it


@pytest.mark.parametrize("drop", [NO_DROP, None])
def test_values_that_are_not_finite_are_in_doubt(drop: Difference | None) -> None:
    """Neither a task nor a limit on the SQNR says that nobody reads them."""
    found = replace(fidelity(45.0), not_finite=2)
    verdict = judge(limited(max_drop=0.01, min_sqnr=20.0), drop=drop, fidelity=found)
    assert verdict.verdict == "inconclusive"
    told = "it returns NaN or infinities for 2 of 64 samples, where fp32 is finite, and "
    assert told in verdict.reasons[-1]


def test_without_a_task_the_worst_output_is_in_doubt() -> None:
    verdict = judge(limited(max_drop=0.01), fidelity=heads(BOXES, replace(SEG, sqnr_db=15.0)))
    assert "fidelity to fp32 is 15.0 dB (SQNR of output 'seg')" in verdict.reasons[-1]
    assert "the error is 18% of the values" in verdict.reasons[-1]


@pytest.mark.parametrize("limit", [None, 5.0])
def test_a_part_that_became_constant_is_in_doubt_whatever_its_sqnr(limit: float | None) -> None:
    scores = replace(BOXES, part="channels 4 to 8", sqnr_db=14.0, constant=True)
    for known in (None, NO_DROP):
        verdict = judge(limited(min_sqnr=limit), drop=known, fidelity=heads(BOXES, scores))
        assert verdict.verdict == "inconclusive"
        (reason,) = (reason for reason in verdict.reasons if "14.0" in reason or "99 %" in reason)
        assert reason.startswith("output 'pred', channels 4 to 8 has become constant")


def test_a_broken_limit_of_accuracy_leaves_no_question_open_about_a_constant_output() -> None:
    only, lost = replace(BOXES, constant=True), Difference(0.9, Interval(0.88, 0.92), SIMULATED)
    verdict = judge(limited(max_drop=0.01), drop=lost, fidelity=heads(only))
    assert verdict.verdict == "fail"
    assert "has become constant" in verdict.reasons[1]
    assert "task" not in verdict.reasons[1]


def measured(p50: float, interval: Interval) -> Latency:
    return Latency(MEASURED, p50, 8, 8e3 / p50, ci95_ms=interval)


def predicted(p50: float, band: Interval) -> Latency:
    return Latency(PREDICTED, p50, 8, 8e3 / p50, band=band)


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        (limited(max_latency_ms=2.5), "pass"),
        (limited(max_latency_ms=2.0), "inconclusive"),
        (limited(max_latency_ms=1.5), "fail"),
        (limited(min_throughput=3000), "pass"),  # 8 per 2.0 (1.8 to 2.2) ms = 3636 to 4444 /s
        (limited(min_throughput=4000), "inconclusive"),
        (limited(min_throughput=5000), "fail"),
        (limited(min_speedup=1.5), "pass"),
        (limited(min_speedup=2.0), "inconclusive"),
        (limited(min_speedup=2.5), "fail"),
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
    trusting = limited(**{**limits.__dict__, "accept": ("predicted",) if accepted else ()})
    verdict = judge(trusting, drop=NO_DROP, **guessed)  # type: ignore[arg-type]
    assert verdict.verdict == (outcome if accepted else "inconclusive")
    if not accepted:
        assert "is predicted, not measured" in verdict.reasons[0]
        assert "gates.accept: [predicted]" in verdict.reasons[0]


def test_a_timing_gate_without_a_latency_is_inconclusive() -> None:
    verdict = judge(limited(max_latency_ms=1.0, min_speedup=1.0, min_throughput=1.0), drop=NO_DROP)
    assert [row.outcome for row in verdict.rows] == ["inconclusive"] * 3


@pytest.mark.parametrize(
    ("size", "outcome"), [(1000, "pass"), (1001, "fail"), (None, "inconclusive")]
)
def test_the_size_gate(size: int | None, outcome: str) -> None:
    assert judge(limited(max_bytes=1000), drop=NO_DROP, size_bytes=size).verdict == outcome


def test_one_failure_outweighs_everything() -> None:
    limits = limited(max_drop=0.01, max_latency_ms=1.0, max_bytes=10)
    verdict = judge(limits, drop=NO_DROP, size_bytes=11)
    assert [row.outcome for row in verdict.rows] == ["pass", "inconclusive", "fail"]
    assert verdict.verdict == "fail"
    assert len(verdict.reasons) == 2


def test_no_gate_at_all_passes_where_accuracy_is_known() -> None:
    assert judge(limited(), drop=NO_DROP) == Verdict("pass", (), ())


def test_the_verdict_is_plain_data() -> None:
    data: Any = to_json(judge_flips(0.01, 0, 0, 899))
    assert data["rows"][0]["evidence"] == "simulated"


@pytest.mark.parametrize(
    ("limits", "lost", "n", "outcome"),
    [
        (limited(min_value=0.95), 10, 1000, "pass"),  # 0.990, Wilson 0.982 to 0.995
        (limited(min_value=0.985), 10, 1000, "inconclusive"),
        (limited(min_value=0.999), 10, 1000, "fail"),
        (limited(max_value=0.999), 10, 1000, "pass"),
        (limited(max_value=0.95), 10, 1000, "fail"),
    ],
)
def test_the_metric_itself_is_judged_by_its_interval(
    limits: Limits, lost: int, n: int, outcome: str
) -> None:
    verdict = judge(limits, drop=NO_DROP, scores=flipped(lost, 0, n))
    assert verdict.verdict == outcome
    if outcome == "inconclusive":
        assert "99.00 % (95 % interval 98.17 to 99.46 %, simulated)" in verdict.reasons[0]
        assert "would decide it (probability 80 %; 1,000 were used)" in verdict.reasons[0]


def test_values_of_a_bootstrap_need_samples() -> None:
    few = from_samples(np.linspace(0.6, 0.9, 10), metric="match", evidence=SIMULATED)
    verdict = judge(limited(min_value=0.1), drop=NO_DROP, scores=(few, few))
    assert verdict.reasons == ("min_value: 10 samples are too few to say",)


def test_a_mean_of_mostly_zeros_hangs_on_too_few_samples_to_pass() -> None:
    errors = np.zeros(200)
    errors[[3, 60, 61, 150]] = (0.5, 1.5, 0.7, 2.0)  # 0.0235 on average
    score = from_samples(errors, metric="word errors", evidence=SIMULATED, lower_is_better=True)
    row = judge(limited(max_drop=None, max_value=0.05), scores=(score, score)).rows[0]
    assert row.outcome == "inconclusive"
    assert row.reason == "the mean hangs on about 3 of 200 samples: too few to say"
    many = from_samples(np.tile(errors, 10), metric="word errors", evidence=SIMULATED)
    assert (
        judge(limited(max_drop=None, max_value=0.05), scores=(many, many)).rows[0].outcome == "pass"
    )


def sliced(lost: dict[str, int], n: int) -> tuple[tuple[Score, Score], list[str]]:
    """`n` samples in each slice, of which so many are lost."""
    after = np.concatenate([flipped(count, 0, n)[1].per_sample for count in lost.values()])
    pair = (
        from_samples(np.ones(after.size), metric="top1", evidence=SIMULATED),
        from_samples(after, metric="top1", evidence=SIMULATED),
    )
    return pair, [name for name in lost for _ in range(n)]


@pytest.mark.parametrize(
    ("limits", "lost", "n", "outcome", "worst"),
    [
        (limited(max_slice_drop=0.02), {"de": 0, "en": 1, "fr": 0}, 500, "pass", "en"),
        (limited(max_slice_drop=0.02), {"de": 0, "en": 5, "fr": 0}, 500, "inconclusive", "en"),
        (limited(max_slice_drop=0.02), {"de": 0, "en": 2, "fr": 40}, 500, "fail", "fr"),
        (limited(min_slice_value=0.98), {"de": 0, "en": 1}, 500, "pass", "en"),
        (limited(min_slice_value=0.98), {"de": 60, "en": 1}, 500, "fail", "de"),
        (limited(max_slice_value=0.9), {"de": 0, "en": 200}, 500, "fail", "de"),
    ],
)
def test_the_worst_slice_decides_and_is_named(
    limits: Limits, lost: dict[str, int], n: int, outcome: str, worst: str
) -> None:
    pair, names = sliced(lost, n)
    (row,) = judge(limits, drop=NO_DROP, scores=pair, slices=names).rows
    assert row.outcome == outcome
    assert f"worst of {len(lost)} slices: {worst!r}, 500 samples" in row.reason
    assert ("would decide it" in row.reason) == (outcome == "inconclusive")
    assert ("of all slices at once" in row.reason) == (outcome == "fail")


def of_a_set(rows: np.ndarray) -> Score:
    """The mean of all columns, with a slice for each of them."""

    def mean(rows: np.ndarray) -> Score:
        return from_samples(rows, metric="m", evidence=SIMULATED, aggregate=lambda a: a.mean())

    columns = {name: mean(rows[:, [index]]) for index, name in enumerate(("cats", "dogs"))}
    return replace(mean(rows), slices=columns)


@pytest.mark.parametrize(
    ("lost", "outcome"), [(0.0, "pass"), (0.04, "inconclusive"), (0.5, "fail")]
)
def test_slices_that_the_task_computes_are_judged(lost: float, outcome: str) -> None:
    rows = np.random.default_rng(0).uniform(0.4, 0.6, (400, 2))
    worse = rows - lost * np.random.default_rng(1).integers(0, 2, (400, 1)) * [0, 1]
    pair = of_a_set(rows), of_a_set(worse)
    (row,) = judge(limited(max_slice_drop=0.04), drop=NO_DROP, scores=pair).rows
    assert row.outcome == outcome
    if lost:
        assert "worst of 2 slices: 'dogs', 400 samples" in row.reason
        assert row.value == pytest.approx(1 - worse[:, 1].mean() / rows[:, 1].mean())
    (row,) = judge(limited(max_slice_drop=None, min_slice_value=0.3), scores=pair).rows
    assert "'dogs'" in row.reason or not lost


def test_many_slices_do_not_make_one_fail_by_chance() -> None:
    """Of 200 slices that keep the limit, the worst looks as if it broke it; its own interval would
    say so."""
    limit, n = 0.02, 400
    lost = {f"s{index}": int(count) for index, count in enumerate(
        np.random.default_rng(0).binomial(n, limit, 200))}  # fmt: skip
    pair, names = sliced(lost, n)
    (row,) = judge(limited(max_slice_drop=limit), drop=NO_DROP, scores=pair, slices=names).rows
    assert row.outcome == "inconclusive"
    own = drop(*flipped(max(lost.values()), 0, n))
    assert own.ci95 is not None
    assert own.ci95.low > limit


def test_a_small_slice_cannot_pass() -> None:
    pair, names = sliced({"common": 0}, 1000)
    rare = ["rare"] * 5 + names[5:]
    (row,) = judge(limited(max_slice_drop=0.02), drop=NO_DROP, scores=pair, slices=rare).rows
    assert row.outcome == "inconclusive"
    assert "'rare', 5 samples" in row.reason
    assert "samples in all would decide it (probability 80 %; 5 were used)" in row.reason


def test_slices_that_are_not_told_are_inconclusive() -> None:
    pair, _ = sliced({"a": 0}, 50)
    verdict = judge(limited(max_slice_drop=0.5, min_slice_value=0.1), drop=NO_DROP, scores=pair)
    assert [row.outcome for row in verdict.rows] == ["inconclusive"] * 2
    assert "the task names no slices" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("memory", "outcome"), [(1000, "pass"), (1001, "fail"), (None, "inconclusive")]
)
def test_the_memory_gate(memory: int | None, outcome: str) -> None:
    limits = limited(max_memory_bytes=1000)
    found = None if memory is None else Memory(Evidence.MEASURED, memory)
    assert judge(limits, drop=NO_DROP, memory=found).verdict == outcome


def test_memory_that_only_the_compiler_states_decides_nothing() -> None:
    stated = Memory(Evidence.COMPILED, 123_456)
    verdict = judge(limited(max_memory_bytes=1000), drop=NO_DROP, memory=stated)
    (row,) = verdict.rows
    assert (row.outcome, row.value, row.evidence) == ("inconclusive", None, None)
    assert "was not measured" in row.reason and "states 123,456 bytes" in row.reason
    assert "(compiled)" in row.reason


def test_memory_measured_beside_others_says_so() -> None:
    marked = Memory(Evidence.MEASURED, 900, ("other processes on the GPU: 2",))
    (row,) = judge(limited(max_memory_bytes=1000), drop=NO_DROP, memory=marked).rows
    assert row.outcome == "pass" and row.reason.endswith("; other processes on the GPU: 2")
