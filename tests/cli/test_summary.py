"""The summary of long lists on a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from optkit.facts.documents.model_figures import BENCH, BenchFigures, Sweep
from optkit.facts.documents.rewrites import Rewrite, rewrites
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import DevicePhases, Interval, Latency, PhaseTimes
from optkit.verbs.cli import summary
from optkit.verbs.cli.build import exit_code
from tests.report.conftest import build, read_result

PREDICTED = Evidence.PREDICTED


def entry(
    rule: str, node: str, outcome: Literal["applied", "declined"] = "applied", reason: str = "why"
) -> Rewrite:
    return Rewrite(rule, node, outcome, reason)


def timed(*sides: Latency, limit_ms: float | None = None) -> BenchFigures:
    """Of a candidate and, where there is one, of a baseline."""
    ours, theirs = sides[:1], sides[1:]
    return BenchFigures(
        schema=BENCH, status="ok", model="m", target="l4", precision="int8", baseline="fp16",
        latency=tuple(ours),
        baseline_latency=tuple(theirs),
        speedup=(), sweep=Sweep(limit_ms=limit_ms), conditions={},
    )  # fmt: skip


def told(*entries: Rewrite) -> list[str]:
    return summary.rewrites(entries)


def test_a_rule_is_one_line_and_so_is_a_reason() -> None:
    assert told(
        entry("attention", "a0", reason="one operator on rows"),
        entry("attention", "a1", reason="one operator on rows"),
        entry("select_early", "s0", reason="past 2 operators"),
        entry("attention", "a2", "declined", "its mask has 3 axes"),
        entry("attention", "a3", "declined", "its heads differ"),
        entry("attention", "a4", "declined", "its mask has 3 axes"),
        entry("gelu", "a4", "declined", "its mask has 3 axes"),
    ) == [
        "attention: 2 applied",
        "select_early: 1 applied",
        "attention: declined at 2 nodes, its mask has 3 axes",
        "attention: declined at a3, its heads differ",
        "gelu: declined at a4, its mask has 3 axes",
    ]


def test_what_was_only_tidied_up_is_one_line() -> None:
    dead = [entry("remove_dead", f"n{i}", reason="Mul had no user") for i in range(347)]
    unused = [entry("remove_unused", "w", reason="constant had no user")]
    assert told(*dead, *unused) == ["removed 347 nodes and 1 constant without readers"]
    assert told(*unused * 2) == ["removed 2 constants without readers"]
    assert told(*dead[:1]) == ["removed 1 node without readers"]


def test_a_stage_that_logs_no_rewrites_has_no_line() -> None:
    for details in ({}, {"log": {}}, {"log": None}, {"log": {"nodes": {"conv": {}}}}):
        assert summary.rewrites(rewrites(details)) == []


def test_no_batch_within_the_limit_is_as_sure_as_the_latencies() -> None:
    *_, last = summary.timings(timed(Latency(PREDICTED, 2.0, 8, 4e3), limit_ms=1.0)).splitlines()
    assert " ".join(last.split()) == "best batch within 1 ms none predicted"


entries = st.builds(
    entry,
    st.sampled_from(["attention", "gelu", "remove_dead", "remove_unused"]),
    st.sampled_from("abc"),
    st.sampled_from(["applied", "declined"]),
    st.sampled_from(["one", "two"]),
)


@given(st.lists(entries, max_size=30))
def test_nothing_is_lost_and_nothing_told_twice(found: list[Rewrite]) -> None:
    lines = told(*found)
    assert len(set(lines)) == len(lines)
    rules = {(one.rule, one.reason) for one in found if one.outcome == "declined"}
    assert sum("declined" in line for line in lines) == len(rules)
    applied = sum(one.outcome == "applied" for one in found)
    numbers = [
        int(word) for line in lines if "declined" not in line for word in line.split()
        if word.isdigit()
    ]  # fmt: skip
    assert sum(numbers) == applied


def test_a_latency_is_reported_with_its_interval_its_tail_and_its_phases() -> None:
    phases = PhaseTimes(0.1, 1.5, 0.05, 0.02, runs=9)
    ours = Latency(Evidence.MEASURED, 2.0, 8, 4e3, ci95_ms=Interval(1.95, 2.1), p99_ms=3.25,
                   phases=DevicePhases(phases, phases))  # fmt: skip
    text = summary.timings(timed(ours, Latency(PREDICTED, 0.5, 8, 16e3)))
    lines = [" ".join(line.split()) for line in text.splitlines()[1:]]
    assert lines == [
        "latency batch 8 2 ms [1.95, 2.1], p99 3.25 ms measured",
        "latency, launched batch 8 0.1 + 1.5 + 0.05, enqueued 0.02 ms measured",
        "latency, recorded batch 8 0.1 + 1.5 + 0.05, enqueued 0.02 ms measured",
        "baseline latency batch 8 ~0.5 ms predicted",
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_a_latency_from_the_store_is_reported_once_with_its_date_and_machine() -> None:
    fresh = build(measure=True)["result"]
    stored = {**fresh, "latency": {**fresh["latency"], "from_store": True}}
    said = "latency measured 2026-11-20 14:03 UTC on A CPU, from the store"
    for one in (fresh, build()["result"], {**fresh, "latency": None}):
        assert not any("from the store" in line for line in summary.remarks(read_result(one)))
    for one in (stored, {**fresh, "latency": None, "parts": {"a": stored, "b": stored}}):
        lines = summary.remarks(read_result(one))
        (remark,) = [line for line in lines if "from the store" in line]
        assert remark.startswith(said) and "makes the next run measure again" in remark


def test_fidelity_and_doubts_about_calibration_stand_on_the_terminal() -> None:
    sound, suspect = (read_result(build(suspect=told)["result"]) for told in (False, True))
    assert "SQNR 31.4 dB to fp32" in summary.table([sound])
    assert not any("suspect" in remark for remark in summary.remarks(sound))
    assert any("calibration data is suspect" in told for told in summary.remarks(suspect))
    untrained = sound.model_copy(update={"untrained": "2 of 2 parameter tensors random"})
    assert not any("not trained" in remark for remark in summary.remarks(sound))
    assert any("the model is not trained" in remark for remark in summary.remarks(untrained))
    whole = sound.model_copy(update={"parts": {"encoder": sound, "decoder": suspect}})
    for result, code in ((sound, 0), (suspect, 3), (whole, 3)):
        result = result.model_copy(update={"gate": None})
        assert (exit_code(result, strict=False), exit_code(result, strict=True)) == (0, code)
    assert sound.fidelity is not None
    (row,) = sound.fidelity.outputs
    dead = replace(row, output="boxes", sqnr_db=2.4)
    two = replace(sound.fidelity, outputs=(row, dead))
    shown = summary.table([sound.model_copy(update={"fidelity": two})])
    assert "SQNR 2.4 dB to fp32 (output 'boxes', all outputs together 31.4 dB)" in shown
    old = replace(sound.fidelity, outputs=())
    assert "SQNR 31.4 dB to fp32" in summary.table([sound.model_copy(update={"fidelity": old})])
    equal = replace(old, sqnr_db=None)
    assert "bit-equal to fp32" in summary.table([sound.model_copy(update={"fidelity": equal})])
    zero = replace(equal, all_zero=True)
    shown = summary.table([sound.model_copy(update={"fidelity": zero})])
    assert "all outputs are zero, as those of fp32" in shown and "bit-equal" not in shown


def test_outputs_that_hardly_depend_on_the_input_are_a_doubt_about_fidelity() -> None:
    for share, said in (
        (None, ""), (0.015, ""), (0.0, "of their power, 0 differs between samples)"),
        (5e-16, "5e-16 differs between samples, and their mean has an SQNR of 153.0 dB"),
    ):  # fmt: skip
        sound = read_result(build()["result"])
        assert sound.fidelity is not None
        near = replace(sound.fidelity, varying=share)
        told = " ".join(summary.remarks(sound.model_copy(update={"fidelity": near})))
        assert (said in told) and (("hardly depend on the input" in told) == bool(said))
