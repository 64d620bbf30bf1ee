"""`optkit bench`: sweeps, and the comparison of two artifacts."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Interval, Latency
from optkit.ground import artifact
from optkit.ground.artifact import Manifest
from optkit.ground.devices import cpu
from optkit.road.steps.bench import BenchResult, TimedPair
from optkit.verbs.api import _bench_against
from optkit.verbs.cli.build import exit_code
from tests.report.conftest import build, read_result

Optkit = Callable[..., Any]

ARTIFACT = "artifacts/small-cpu-int8"


@pytest.fixture
def run(optkit_here: Optkit, small: Path, store: Path) -> Optkit:
    return lambda *line: optkit_here("bench", *line, cwd=small, cache=store)


@pytest.mark.slow
def test_a_sweep_names_its_knee_and_the_best_batch(run: Optkit) -> None:
    line = ["--target", "cpu", "--batch", 2, "--batch", 4, "--latency", "60s",
            "--set", "bench.seconds=0.02"]  # fmt: skip
    found = run(*line, "--json").json
    batches = [one["batch"] for one in found["latency"]]
    assert {2, 4} <= set(batches)
    fastest = max(found["latency"], key=lambda one: one["throughput"])
    assert found["sweep"]["limit_ms"] == 60_000
    assert found["sweep"]["best_under_limit"] == fastest["batch"]
    assert found["sweep"]["knee"] in batches
    assert all(isinstance(one["marks"], list) for one in found["latency"])
    text = run(*line).out
    named = re.search(r"knee +all batches +batch (\d+), ", text)
    assert named is not None and int(named[1]) in batches and "within 60000 ms" in text
    rows = (*found["latency"], *found["baseline_latency"])
    if not any(one["marks"] for one in rows):  # else the machine was busy: it is measured again
        assert int(named[1]) == found["sweep"]["knee"]


@pytest.mark.slow
def test_a_latency_says_when_and_where_it_was_measured_and_whether_it_is_from_the_store(
    run: Optkit,
) -> None:
    line = ["--target", "cpu", "--batch", 3, "--set", "bench.seconds=0.2"]
    began = datetime.now(UTC).replace(microsecond=0)
    done = run(*line, "--json")
    for one in (*done.json["latency"], *done.json["baseline_latency"]):
        assert began <= datetime.fromisoformat(one["measured_at"]) <= datetime.now(UTC)
        assert one["measured_at"].endswith("Z")
        assert (one["machine"], one["from_store"]) == (cpu().name, False)
    assert "from the store" not in done.err
    again = run(*line, "--json")
    if not done.json["latency"][0]["marks"]:  # else the machine was busy: it is measured again
        assert {one["from_store"] for one in again.json["latency"]} == {True}
        day, time = done.json["latency"][0]["measured_at"][:16].split("T")
        again.told(f"latency measured {day} {time} UTC on {cpu().name}, from the store")
        assert again.json["speedup"] == done.json["speedup"]


@pytest.mark.slow
def test_two_artifacts_are_timed_in_one_run_and_never_from_the_store(run: Optkit) -> None:
    line = [ARTIFACT, "--against", ARTIFACT, "--batch", 2, "--batch", 8, "--json"]
    first, again = (run(*line).result for _ in range(2))
    assert [row["batch"] for row in first["rows"]] == [2, 8]
    assert first["verdict"] is None and first["conditions"]["cores"][0] >= 1
    for row in first["rows"]:
        low, high = row["slowdown"]["ci95"]
        assert low <= row["slowdown"]["value"] <= high
        assert row["latency"]["runs"] == row["against_latency"]["runs"] >= 10
    assert first["rows"] != again["rows"]
    assert not any(row["latency"]["from_store"] for row in again["rows"])


def test_what_cannot_be_compared_is_refused(run: Optkit, tmp_path: Path) -> None:
    elsewhere = Manifest("other", "l4", "fp16", "d" * 64, {}, (), (), {}, {"status": "ok"})
    other = artifact.write(tmp_path, elsewhere, {}).path
    for line, code, told in (
        ([ARTIFACT, "--against", other], 5, "it is for l4, the other for cpu"),
        ([ARTIFACT, "--against", "nothing"], 5, "no such folder"),
        ([ARTIFACT, "--against", ARTIFACT, "--batch", 4096], 2, "both are built for 1 to "),
        ([ARTIFACT, "--against", ARTIFACT, "--target", "cpu"], 2, "cannot be used with --against"),
        ([ARTIFACT, "--against", ARTIFACT, "--recipe", "optkit.yaml"], 2, "cannot be used with"),
        ([ARTIFACT, "--against", ARTIFACT, "--opt-shapes", "x:1x16"], 2, "cannot be used with"),
        ([ARTIFACT, "--against", ARTIFACT, "--set", "gates.max_drop=1%"], 2, "bench.seconds, "),
        ([ARTIFACT, "--against", ARTIFACT, "--set", "bench.batches=[1]"], 2, "are --batch"),
        ([ARTIFACT, "--against", ARTIFACT, "--set", "bench.seconds=no"], 2, "bench.seconds=no"),
        (["--against", ARTIFACT], 2, "give the artifact to measure as MODEL"),
        (["--target", "cpu", "--max-slowdown", "5%"], 2, "it needs --against"),
        (["--target", "cpu", "--max-slowdown", "5"], 2, "write it like 5%"),
        (
            ["--target", "cpu", "--junit", "a.xml"],
            2,
            "it needs a limit: without one there is no verdict",
        ),
        ([ARTIFACT, "--against", ARTIFACT, "--junit", "a.xml"], 2, "without one there is no"),
        ([], 2, "see `optkit targets`"),
        (["--target", "cpu", "--batch", 4096], 2, "it is built for batches of 1 to "),
        (["--target", "l4", "--batch", 2], 2, "l4 is not this machine"),
    ):
        done = run(*line)
        assert done.code == code, (line, done.err)
        done.told(told)


def raced(low: float, high: float, *marks: str) -> Any:
    """The step `bench` with a speedup between `low` and `high`."""
    one = Latency(Evidence.MEASURED, 1.0, 8, 8000.0, marks=marks)
    speedup = Difference((low + high) / 2, Interval(low, high), Evidence.MEASURED)
    return BenchResult(rows=(TimedPair(one, one, speedup),))


def test_how_two_artifacts_are_timed_may_be_set(
    run: Optkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def race(both: Any, *rest: Any, **settings: Any) -> Any:
        asked.append(both)
        return raced(0.99, 1.0)

    monkeypatch.setattr("optkit.road.pipeline.artifact_race.race", race)
    line = [ARTIFACT, "--against", ARTIFACT, "--set", "bench.seconds=7", "--set", "bench.threads=1"]
    assert run(*line).code == 0
    (both,) = asked
    assert (both.bench.seconds, both.bench.warmup_seconds) == (7, 0.02)  # else as it was built
    assert {side.session.threads for side in both.sides.values()} == {1}


@pytest.mark.parametrize(
    ("made", "verdict", "codes"),
    [
        (raced(0.8, 0.9), "fail", (3, 3)),
        (raced(0.9, 1.0), "inconclusive", (0, 3)),
        (raced(0.99, 1.0), "pass", (0, 0)),
        (raced(0.99, 1.0, "the fan stopped"), "pass", (0, 3)),
    ],
)
def test_a_regression_fails_only_beyond_doubt(
    run: Optkit,
    small: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Any,
    verdict: str,
    codes: tuple[int, int],
) -> None:
    monkeypatch.setattr(_bench_against, "time_beside", lambda *sides, **settings: made)
    line = [ARTIFACT, "--against", ARTIFACT, "--max-slowdown", "5%"]
    done = run(*line, "--json", "--junit", "gates.xml")
    (case,) = ElementTree.parse(small / "gates.xml").iter("testcase")
    outcome = {"fail": ["failure"], "inconclusive": ["skipped"], "pass": ["system-out"]}[verdict]
    assert case.get("name") == "max_slowdown batch 8"
    assert [child.tag for child in case] == outcome
    strict = run(*line, "--strict")
    assert (done.code, strict.code) == codes
    assert done.result["verdict"] == verdict
    assert done.result["status"] == ("gate_failed" if verdict == "fail" else "ok")
    assert verdict in strict.out
    assert ("bad conditions: the fan stopped" in done.err) == made.marked


def test_one_object_is_printed_where_the_gates_cannot_be_written(
    run: Optkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_bench_against, "time_beside", lambda *sides, **settings: raced(0.99, 1.0))
    line = [ARTIFACT, "--against", ARTIFACT, "--max-slowdown", "5%", "--json"]
    done = run(*line, "--junit", "/proc/nowhere/gates.xml")
    assert (done.code, done.json["error"]["code"]) == (8, "storage")
    assert run(*line, "--junit", "/dev/null").json["verdict"] == "pass"
    assert Path("/dev/null").is_char_device()


def test_a_marked_latency_passes_unless_strict() -> None:
    data = build()["result"]
    data["gate"]["verdict"] = "pass"
    data["baseline"]["latency"]["marks"] = ["the fan stopped"]
    result = read_result(data)
    assert (exit_code(result, strict=False), exit_code(result, strict=True)) == (0, 3)
    whole = result.model_copy(update={"baseline": None, "parts": {"encoder": result}})
    assert (exit_code(whole, strict=False), exit_code(whole, strict=True)) == (0, 3)
