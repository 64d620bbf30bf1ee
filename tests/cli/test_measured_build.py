"""A build for this CPU: nothing predicted, nothing simulated. Of a small model, and, with the slow
tests, of the residual CNN."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optkit
from optkit.ground.artifact import Artifact

Optkit = Callable[..., Any]


@dataclass(frozen=True)
class Example:
    """`recipe`: None for that of `small`; `shape`: of `input` with three samples; `size`: less than
    this part of the baseline's."""

    recipe: str | None
    input: str
    shape: tuple[int, ...]
    layers: int
    size: float


EXAMPLES = [
    Example(None, "x", (3, 16), layers=2, size=0.8),
    pytest.param(
        Example("digits-cnn", "image", (3, 1, 32, 32), layers=9, size=0.5), marks=pytest.mark.slow
    ),
]


@pytest.fixture(scope="module", params=EXAMPLES, ids=["small", "digits-cnn"])
def example(request: pytest.FixtureRequest) -> Example:
    found = request.param
    assert isinstance(found, Example)
    return found


@pytest.fixture(scope="module")
def out(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


@pytest.fixture
def build(example: Example, optkit_here: Optkit, small: Path, store: Path) -> Optkit:
    """`optkit build` of the example; the shared store has most of what it needs."""
    line = ["build", "--target", "cpu", "--set", "bench.seconds=0.1", "--json",
            "--set", "bench.warmup_seconds=0.1"]  # fmt: skip
    if example.recipe:
        line += ["--recipe", example.recipe]
    where = {"cache": store} if example.recipe else {"cache": store, "cwd": small}
    return lambda *argv: optkit_here(*line, *argv, **where)


@pytest.fixture
def result(build: Optkit, out: Path) -> dict[str, Any]:
    """The result of the build; only the first test of an example waits for it."""
    if not (out / "result.json").exists():
        done = build("--out", out)
        assert done.code == 0, done.err
        (out / "result.json").write_text(json.dumps(done.result))
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    return found


def test_every_figure_is_measured(result: dict[str, Any]) -> None:
    assert (result["status"], result["pending"]) == ("ok", [])
    for figure in ("engine", "latency", "accuracy", "fidelity", "speedup", "drop"):
        assert result[figure]["evidence"] == "measured", figure
    assert result["engine"]["backend"] == "onnxruntime"
    assert result["gate"]["verdict"] == "pass"
    assert result["accuracy"]["value"] >= 0.97
    assert result["baseline"]["precision"] == "fp32"  # FP16 has no kernels on a CPU
    assert result["references"] == []
    steps = json.loads((Path(result["artifact"]) / "report.json").read_text())
    steps = steps["provenance"]["steps"]
    assert not [step["label"] for step in steps if "fp16" in step["label"].lower()]


def test_every_layer_lands(result: dict[str, Any], example: Example) -> None:
    landing = result["engine"]["landing"]
    assert landing["landed"] == landing["planned"] >= example.layers
    assert set(landing["by_dtype"]) <= {"int8", "uint8"}
    assert result["size"]["bytes"] < result["size"]["baseline_bytes"] * example.size


def test_latency_has_its_interval_and_its_conditions(result: dict[str, Any]) -> None:
    latency, speedup = result["latency"], result["speedup"]
    assert latency["batch"] == 8 and latency["runs"] >= 10
    assert latency["min_ms"] <= latency["p50_ms"]
    assert (latency["p90_ms"] is not None) == (latency["runs"] >= 100)
    assert latency["ci95_ms"][0] <= latency["p50_ms"] <= latency["ci95_ms"][1]
    assert speedup["ci95"][0] <= speedup["value"] <= speedup["ci95"][1]
    report = json.loads((Path(result["artifact"]) / "report.json").read_text())
    batches = [one["batch"] for one in report["latencies"]["engine"]]
    assert batches == [1, 8]
    assert report["conditions"]["cores"][0] >= 1


def test_the_artifact_runs_as_it_was_measured(result: dict[str, Any], example: Example) -> None:
    artifact = optkit.load(result["artifact"])
    artifact.verify()
    assert artifact.result == result
    x = np.random.default_rng(0).random(example.shape, dtype=np.float32)
    with artifact.session() as session:
        assert (session.backend, session.evidence) == ("onnxruntime", "measured")
        [logits] = session.run({example.input: x}).values()
    assert len(logits) == 3
    with artifact:
        [again] = artifact.run({example.input: x}).values()
    np.testing.assert_array_equal(again, logits)


@pytest.mark.slow
def test_a_gate_on_latency_counts_what_was_measured(
    result: dict[str, Any], build: Optkit, tmp_path: Path
) -> None:
    slow = build("--out", tmp_path, "--set", "gates.max_latency_ms=1000")
    assert (slow.code, slow.result["gate"]["verdict"]) == (0, "pass")
    fast = build("--out", tmp_path, "--set", "gates.max_latency_ms=0.0001")
    assert (fast.code, fast.result["status"]) == (3, "gate_failed")
    assert "max_latency_ms" in fast.result["gate"]["reasons"][0]
    assert Artifact.load(Path(fast.result["artifact"])).result["status"] == "gate_failed"
    for before, after in itertools.pairwise([result, slow.result, fast.result]):
        again = [one["latency"]["marks"] for one in (before, before["baseline"])]
        if not any(again):  # else the machine was busy, and it is measured again
            stored = {**before["latency"], "from_store": True}
            assert after["latency"] == stored
