"""The residual CNN on this CPU: nothing predicted, nothing simulated."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optkit
from optkit.artifact import Artifact

Optkit = Callable[..., Any]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measured")


@pytest.fixture
def result(optkit_here: Optkit, store: Path, out: Path) -> dict[str, Any]:
    """The result of the build; only the first test of this file waits for it."""
    if not (out / "result.json").exists():
        quick = ["--set", "bench.seconds=0.3", "--set", "bench.warmup_seconds=0.1"]
        line = ["build", "--recipe", "digits-cnn", "--target", "cpu", *quick, "--json"]
        done = optkit_here(*line, "--out", out, cache=store)
        assert done.code == 0, done.err
        (out / "result.json").write_text(json.dumps(done.result))
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    return found


def test_every_figure_is_measured(result: dict[str, Any], out: Path) -> None:
    assert (result["status"], result["pending"]) == ("ok", [])
    for figure in ("engine", "latency", "accuracy", "fidelity", "speedup", "drop"):
        assert result[figure]["evidence"] == "measured", figure
    assert result["engine"]["backend"] == "onnxruntime"
    assert result["gate"]["verdict"] == "pass"
    assert result["accuracy"]["value"] >= 0.97
    assert result["baseline"]["precision"] == "fp32"  # FP16 has no kernels on a CPU
    assert result["references"] == []
    steps = json.loads((out / "digits-cnn-cpu-int8/report.json").read_text())["provenance"]["steps"]
    assert not [step["label"] for step in steps if "fp16" in step["label"].lower()]


def test_every_convolution_lands(result: dict[str, Any]) -> None:
    landing = result["engine"]["landing"]
    assert landing["landed"] == landing["planned"] > 8
    assert set(landing["by_dtype"]) <= {"int8", "uint8"}
    assert result["size"]["bytes"] < result["size"]["baseline_bytes"] / 2


def test_latency_has_its_interval_and_its_conditions(result: dict[str, Any], out: Path) -> None:
    latency, speedup = result["latency"], result["speedup"]
    assert latency["batch"] == 8 and latency["runs"] >= 10
    assert latency["min_ms"] <= latency["p50_ms"]
    assert (latency["p90_ms"] is not None) == (latency["runs"] >= 100)
    assert latency["ci95_ms"][0] <= latency["p50_ms"] <= latency["ci95_ms"][1]
    assert speedup["ci95"][0] <= speedup["value"] <= speedup["ci95"][1]
    report = json.loads((out / "digits-cnn-cpu-int8/report.json").read_text())
    batches = [one["batch"] for one in report["latencies"]["engine"]]
    assert batches == [1, 8]
    assert report["conditions"]["cores"][0] >= 1


def test_the_artifact_runs_as_it_was_measured(result: dict[str, Any]) -> None:
    artifact = optkit.load(result["artifact"])
    artifact.verify()
    assert artifact.result == result
    x = np.random.default_rng(0).random((3, 1, 32, 32), dtype=np.float32)
    with artifact.session() as session:
        assert (session.backend, session.evidence) == ("onnxruntime", "measured")
        [logits] = session.run({"image": x}).values()
    assert logits.shape == (3, 10)
    with artifact:
        [again] = artifact.run({"image": x}).values()
    np.testing.assert_array_equal(again, logits)


def test_a_gate_on_latency_counts_what_was_measured(
    result: dict[str, Any], optkit_here: Optkit, store: Path, tmp_path: Path
) -> None:
    quick = ["--set", "bench.seconds=0.3", "--set", "bench.warmup_seconds=0.1"]
    line = ["build", "--recipe", "digits-cnn", "--target", "cpu", *quick, "--out", tmp_path]
    slow = optkit_here(*line, "--set", "gates.max_latency_ms=1000", "--json", cache=store)
    assert (slow.code, slow.result["gate"]["verdict"]) == (0, "pass")
    fast = optkit_here(*line, "--set", "gates.max_latency_ms=0.0001", "--json", cache=store)
    assert (fast.code, fast.result["status"]) == (3, "gate_failed")
    assert "max_latency_ms" in fast.result["gate"]["reasons"][0]
    assert Artifact.load(tmp_path / "digits-cnn-cpu-int8").result["status"] == "gate_failed"
    for before, after in itertools.pairwise([result, slow.result, fast.result]):
        again = [one["latency"]["marks"] for one in (before, before["baseline"])]
        if not any(again):  # else the machine was busy, and it is measured again
            stored = {**before["latency"], "from_store": True}
            assert after["latency"] == stored
