"""What steps leave and what is made of it, over builds whose steps never ran."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from optkit.benchmarking import sequential as looks
from optkit.benchmarking.accuracy import drop, from_samples
from optkit.benchmarking.gates import judge
from optkit.evidence import Evidence
from optkit.measurement import Difference, Interval, Latency
from optkit.pipeline import identity, judging, scores
from optkit.pipeline.findings import _at, latencies, speedups
from optkit.precisions import PRECISIONS
from optkit.recipe import Bench
from optkit.recipe.schema import Limits
from optkit.steps import TIMES

NO_DROP = Difference(0.0, Interval(0.0, 0.0), Evidence.SIMULATED)


def predicted(p50: float, high: float) -> dict[str, Any]:
    band = Interval(p50, high)
    return Latency(Evidence.PREDICTED, p50, 8, 8e3 / p50, band=band).to_json()


def build(ours: dict[str, Any], theirs: dict[str, Any], *, same: bool = False) -> Any:
    """A build that was predicted."""
    entries = {"latency": ours, "baseline_latency": theirs}
    metas = {name: SimpleNamespace(meta={"latency": one}) for name, one in entries.items()}
    return SimpleNamespace(measured=False, is_baseline=same, entries=metas)


@pytest.mark.parametrize(
    ("least", "outcome"), [(0.5, "pass"), (1.2, "inconclusive"), (3.1, "fail")]
)
def test_a_predicted_speedup_is_judged_by_both_bands(least: float, outcome: str) -> None:
    made = build(predicted(1.0, 2.0), predicted(1.3, 3.0))
    speedup = speedups(made, latencies(made))[8]
    assert speedup.value == pytest.approx(1.3)
    assert speedup.ci95 == pytest.approx((1.3 / 2.0, 3.0))
    limits = Limits(min_speedup=least, accept=("predicted",))
    assert judge(limits, drop=NO_DROP, speedup=speedup).rows[-1].outcome == outcome


def test_a_latency_that_is_pending_gives_no_speedup() -> None:
    made = SimpleNamespace(measured=False, is_baseline=False, entries={})
    times = latencies(made)  # type: ignore[arg-type]
    assert times == {"engine": [], "baseline": []} and _at(times["engine"], 8) is None
    assert speedups(made, times) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("measured", [False, True])
def test_a_baseline_is_as_fast_as_itself(measured: bool) -> None:
    one, again = predicted(1.0, 2.0), predicted(1.1, 2.2)
    made = build(one, again, same=True)
    if measured:  # the same graph timed twice
        evidence = {"evidence": "measured"}
        row = {"engine": {**one, **evidence}, "baseline": {**again, **evidence},
               "speedup": {"value": 1.1, "ci95": [1.05, 1.2], "evidence": "measured"}}  # fmt: skip
        made.measured, made.entries["latency"] = True, SimpleNamespace(meta={"rows": [row]})
        side = [Latency.from_json(row["engine"])]
        times = {"engine": side, "baseline": side}
    else:
        times = latencies(made)
    found = speedups(made, times)[8]
    assert (found.value, found.ci95) == (1.0, (1.0, 1.0))
    assert found.evidence == ("measured" if measured else "predicted")


@pytest.mark.parametrize("stored", [False, True])
def test_a_latency_from_the_store_says_so(
    stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = {
        **Latency(Evidence.MEASURED, 1.0, 8, 8e3).to_json(), "from_store": False,
        "measured_at": "2026-11-20T14:03:12Z", "machine": "A CPU",
    }  # fmt: skip
    save_file({f"{name}/8": np.ones(1) for name in ("engine", "baseline")}, tmp_path / TIMES)
    row = {"engine": side, "baseline": side}
    entry = SimpleNamespace(meta={"rows": [row]}, file=lambda name: tmp_path / name)
    monkeypatch.setattr(judging, "race", lambda *both, **settings: entry)
    monkeypatch.setattr(judging, "_sides", lambda made: ({}, {}))
    int8, fp32 = PRECISIONS["int8"], PRECISIONS["fp32"]
    job = SimpleNamespace(recipe=SimpleNamespace(bench=Bench()), precision=int8, strict=False)
    made: Any = SimpleNamespace(
        job=job, batches=None, measured=True, baseline_precision=fp32, machine={},
        is_baseline=False, entries={"probe": None},
    )  # fmt: skip
    steps: Any = SimpleNamespace(recalled=lambda made: stored)
    judging.time(made, steps)
    for role in ("engine", "baseline"):
        (found,) = latencies(made)[role]
        assert (found.from_store, found.measured_at, found.machine) == (
            stored, "2026-11-20T14:03:12Z", "A CPU",
        )  # fmt: skip


def test_when_a_latency_was_measured_is_no_part_of_what_was_built() -> None:
    def at(when: str) -> str:
        graph = SimpleNamespace(files={"model.onnx": "a" * 64})
        timed = SimpleNamespace(
            meta={"rows": [{"engine": {"measured_at": when}}]}, digest=when, files={"times": when}
        )
        job = SimpleNamespace(recipe=SimpleNamespace(to_json=dict), precision=PRECISIONS["int8"],
                              target=SimpleNamespace(name="cpu"))  # fmt: skip
        entries = {"graph": graph, "baseline": graph, "latency": timed}
        made: Any = SimpleNamespace(job=job, entries=entries, assignment=None, specs={})
        return identity(made)

    assert at("2026-11-20T14:03:12Z") == at("2026-11-21T08:00:00Z")


def test_a_prediction_has_no_date_and_no_machine() -> None:
    made = build(predicted(1.0, 2.0), predicted(1.3, 3.0))
    for (one,) in latencies(made).values():
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
    entries: dict[str, Any] = {}
    for part, (start, stop) in enumerate(looks.segments(1_100)):
        numbers = np.sort(looks.order(1_100)[start:stop]).astype(float)
        found = from_samples(numbers, metric="m", evidence=Evidence.SIMULATED)
        entries[scores.drawn_name(part)] = SimpleNamespace(path=numbers)
        for role in ("candidate", "baseline"):
            entries[scores.score_name(role, part)] = found
    monkeypatch.setattr(scores, "_read", lambda entry: entry)
    monkeypatch.setattr(scores, "Spool", lambda path: SimpleNamespace(slices=lambda: list(path)))
    scored = SimpleNamespace(meta={"info": {"samples": 1_100}})
    made: Any = SimpleNamespace(entries=entries, scored=scored, is_baseline=same)
    told = scores.task_scores(made)
    assert list(told["candidate"].per_sample) == scores.slices(made) == list(range(1_100))
    width = np.ptp(drop(told["baseline"], told["candidate"]).ci95)  # type: ignore[arg-type]
    assert (width == 0) == same  # the baseline beside itself, and else what chance could make
