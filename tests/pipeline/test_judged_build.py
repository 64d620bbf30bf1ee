"""Figures from the results of steps, with builds whose steps never ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from optkit.craft.benchmarking import sequential as looks
from optkit.craft.benchmarking.accuracy import from_samples
from optkit.craft.benchmarking.gates import judge
from optkit.craft.benchmarking.paired_drop import drop
from optkit.craft.prediction.fitted import fitted
from optkit.facts.evidence import Evidence
from optkit.facts.listed_steps import StepTaken
from optkit.facts.measurement import Difference, Interval, Latencies, Latency
from optkit.facts.precisions import PRECISIONS
from optkit.ground.execute.step import Foreign
from optkit.ground.recipe import Bench
from optkit.ground.recipe.sections import Limits
from optkit.road.pipeline import identity, scores, timing
from optkit.road.pipeline.judged_build import _at, _hits, latencies, speedups
from optkit.road.steps.bench import BenchResult, TimedPair
from optkit.road.steps.file_names import TIMES
from optkit.road.steps.predict import PredictedLatency

NO_DROP = Difference(0.0, Interval(0.0, 0.0), Evidence.SIMULATED)


def predicted(p50: float, high: float) -> Latency:
    band = Interval(p50, high)
    return Latency(Evidence.PREDICTED, p50, 8, 8e3 / p50, band=band)


def build(ours: Latency, theirs: Latency, *, same: bool = False) -> Any:
    """A build that was predicted."""
    return SimpleNamespace(
        is_baseline=same, latency=PredictedLatency(latency=ours, kind="encoder", of_layers=True),
        baseline_latency=PredictedLatency(latency=theirs, kind="encoder", of_layers=True),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("least", "outcome"), [(0.5, "pass"), (1.2, "inconclusive"), (3.1, "fail")]
)
def test_a_predicted_speedup_is_judged_by_its_interval(least: float, outcome: str) -> None:
    made = build(predicted(1.0, 2.0), predicted(1.3, 3.0))
    speedup = speedups(made, latencies(made))[8]
    assert speedup.value == pytest.approx(1.3)
    factor = fitted().widths["ratio encoder"]
    assert speedup.ci95 == pytest.approx((1.3 / factor, 1.3 * factor))
    limits = Limits(min_speedup=least, accept=("predicted",))
    assert judge(limits, drop=NO_DROP, speedup=speedup).rows[-1].outcome == outcome


def test_a_latency_that_is_pending_gives_no_speedup() -> None:
    made = SimpleNamespace(is_baseline=False, latency=None, baseline_latency=None)
    times = latencies(made)  # type: ignore[arg-type]
    assert times == Latencies([], []) and _at(times.engine, 8) is None
    assert speedups(made, times) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("measured", [False, True])
def test_a_baseline_is_as_fast_as_itself(measured: bool) -> None:
    one, again = predicted(1.0, 2.0), predicted(1.1, 2.2)
    made = build(one, again, same=True)
    if measured:  # the same graph timed twice
        pair = [replace(each, evidence=Evidence.MEASURED) for each in (one, again)]
        speedup = Difference(1.1, Interval(1.05, 1.2), Evidence.MEASURED)
        made.latency = BenchResult(rows=(TimedPair(*pair, speedup),))
        times = Latencies(pair[:1], pair[:1])
    else:
        times = latencies(made)
    found = speedups(made, times)[8]
    assert (found.value, found.ci95) == (1.0, (1.0, 1.0))
    assert found.evidence == ("measured" if measured else "predicted")


@pytest.mark.parametrize("stored", [False, True])
def test_a_latency_from_the_store_says_so(
    stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Latency(
        Evidence.MEASURED, 1.0, 8, 8e3, from_store=False, measured_at="2026-11-20T14:03:12Z",
        machine="A CPU",
    )  # fmt: skip
    save_file({f"{name}/8": np.ones(1) for name in ("engine", "baseline")}, tmp_path / TIMES)
    row = TimedPair(side, side, Difference(1.0, None, Evidence.MEASURED))
    timed = BenchResult(rows=(row,), folder=Foreign(tmp_path))
    monkeypatch.setattr(timing, "race", lambda *both, **settings: timed)
    monkeypatch.setattr(timing, "_sides", lambda made: ({}, {}))
    int8, fp32 = PRECISIONS["int8"], PRECISIONS["fp32"]
    job = SimpleNamespace(recipe=SimpleNamespace(bench=Bench()), precision=int8, strict=False)
    made: Any = SimpleNamespace(
        job=job, batches=None, measured=True, baseline_precision=fp32, machine={},
        is_baseline=False, probe=None,
    )  # fmt: skip
    steps: Any = SimpleNamespace(recalled=lambda made: stored)
    timing.time(made, steps)
    for side in (latencies(made).engine, latencies(made).baseline):
        (found,) = side
        assert (found.from_store, found.measured_at, found.machine) == (
            stored, "2026-11-20T14:03:12Z", "A CPU",
        )  # fmt: skip


def test_when_a_latency_was_measured_is_no_part_of_what_was_built() -> None:
    def at(when: str) -> str:
        graph = SimpleNamespace(files={"model.onnx": "a" * 64})
        timed = SimpleNamespace(measured_at=when, digest=when, files={"times": when})
        job = SimpleNamespace(recipe=SimpleNamespace(to_json=dict), precision=PRECISIONS["int8"],
                              target=SimpleNamespace(name="cpu"))  # fmt: skip
        made: Any = SimpleNamespace(
            job=job, graph=graph, baseline=graph, latency=timed, statistics=None, assignment=None,
            build_spec={},
        )  # fmt: skip
        return identity(made)

    assert at("2026-11-20T14:03:12Z") == at("2026-11-21T08:00:00Z")


def test_a_prediction_has_no_date_and_no_machine() -> None:
    made = build(predicted(1.0, 2.0), predicted(1.3, 3.0))
    for (one,) in (latencies(made).engine, latencies(made).baseline):
        assert (one.measured_at, one.machine, one.from_store) == (None, None, None)


def test_a_mark_at_any_batch_size_is_one_of_the_whole_run() -> None:
    def at(batch: int, *marks: str) -> Latency:
        return Latency(Evidence.MEASURED, 1.0, batch, 1e3 * batch, marks=marks)

    found = _at([at(1, "the fan stopped", "batch 1: no steady state"), at(8, "the fan stopped")], 8)
    assert (found.batch, found.marks) == (8, ("the fan stopped", "batch 1: no steady state"))


@pytest.mark.parametrize("same", [False, True])
def test_what_looks_have_scored_is_in_the_order_of_the_samples(
    same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = SimpleNamespace(scores={}, looks=[], is_baseline=same)
    for start, stop in looks.segments(1_100):
        numbers = np.sort(looks.order(1_100)[start:stop]).astype(float)
        found = from_samples(numbers, metric="m", evidence=Evidence.SIMULATED)
        pair = {"candidate": found, "baseline": found}
        made.looks.append(SimpleNamespace(samples=SimpleNamespace(path=numbers), scores=pair))
    monkeypatch.setattr(scores, "_read", lambda entry: entry)
    monkeypatch.setattr(
        scores, "Spool", lambda path: SimpleNamespace(slices=lambda: list(path), groups=list)
    )
    made.scored = SimpleNamespace(info=SimpleNamespace(samples=1_100))
    told = scores.task_scores(made)
    assert told.candidate is not None and told.pair is not None
    assert list(told.candidate.per_sample) == scores.slices(made) == list(range(1_100))
    width = np.ptp(drop(*told.pair).ci95)  # type: ignore[arg-type]
    assert (width == 0) == same  # the baseline beside itself, and else what chance could make


def test_a_step_that_this_run_made_is_no_hit_when_it_is_asked_for_again() -> None:
    def record(key: str, *, hit: bool) -> StepTaken:
        return StepTaken("export", "export", key, hit, 1.0)

    records = [record("a", hit=False), record("a", hit=True), record("b", hit=True)]
    assert _hits([*records, record("b", hit=True)]) == 1
