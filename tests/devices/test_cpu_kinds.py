"""Artifacts for kinds of CPU, of which this machine is at most one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optkit.ground import graph
from optkit.ground.artifact import VNNI, Artifact
from optkit.ground.devices import runs_here, target
from tests.conftest import Optkit
from tests.report.test_build_result import check

pytestmark = pytest.mark.slow

KINDS = ("cpu-avx2", "cpu-avx512-vnni")
FAST = ("--set", "bench.seconds=0.1", "--set", "bench.warmup_seconds=0.1")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def results(
    store: Path, optkit_apart: Optkit, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """digits-cnn for both kinds, by one command."""
    wanted = [word for name in KINDS for word in ("--target", name)]
    done = optkit_apart(
        "build", "--recipe", "digits-cnn", *wanted, "--precision", "int8", *FAST, "--json",
        "--out", tmp_path_factory.mktemp("out"), cache=store,
    )  # fmt: skip
    assert done.code == 0, done.err
    return {one["target"]: one for one in done.json["results"]}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_built_for_on_any_machine(results: dict[str, Any], name: str) -> None:
    one, own = results[name], runs_here(target(name))
    check("result", one)
    assert (one["baseline"]["precision"], one["references"]) == ("fp32", [])
    known = "measured" if own else "simulated"
    assert one["accuracy"]["evidence"] == one["fidelity"]["evidence"] == known
    assert abs(one["drop"]["value"]) < 0.01 and one["fidelity"]["sqnr_db"] > 35
    if own:
        assert (one["status"], one["pending"]) == ("ok", [])
        assert one["engine"]["evidence"] == one["latency"]["evidence"] == "measured"
        return
    assert (one["status"], one["engine"]["evidence"]) == ("pending", "pending")
    assert f"on a machine of the kind {name}" in one["engine"]["note"]
    assert (one["latency"], one["speedup"], one["baseline"]["latency"]) == (None, None, None)
    assert [row["finish"] for row in one["pending"]] == [f"optkit finish {one['artifact']}"]
    report = json.loads((Path(one["artifact"]) / "report.json").read_text())
    check("report", report)
    assert report["latencies"] == {"engine": [], "baseline": []}


def test_weights_are_those_of_the_kind(results: dict[str, Any]) -> None:
    """Seven bits of `cpu-avx2`, whose pairs of products would saturate with eight."""
    eight = {}
    for name, one in results.items():
        artifact = Artifact.load(Path(one["artifact"]))
        eight[name] = graph.assumes_vnni(graph.load(artifact.path / "model.onnx"))
        assert artifact.manifest.instruction_set == (VNNI if eight[name] else None)
    assert eight == {"cpu-avx2": False, "cpu-avx512-vnni": True}


def test_an_artifact_is_finished_on_a_machine_of_its_kind_alone(
    results: dict[str, Any], store: Path, optkit_apart: Optkit, tmp_path: Path
) -> None:
    for name, one in results.items():
        artifact = Path(one["artifact"])
        if not runs_here(target(name)):
            refused = optkit_apart("finish", artifact, "--json", cache=store)
            assert refused.code == 4 and f"machine of the kind {name}" in refused.err
            continue
        left = optkit_apart(
            "build", "--recipe", "digits-cnn", "--target", name, "--precision", "int8", *FAST,
            "--defer", "--json", "--out", tmp_path, cache=store,
        )  # fmt: skip
        assert (left.result["status"], left.result["latency"]) == ("pending", None)
        done = optkit_apart("finish", tmp_path / artifact.name, "--json", cache=store)
        assert done.code == 0, done.err
        assert done.result["latency"]["evidence"] == "measured"
        assert Artifact.load(tmp_path / artifact.name).digest == Artifact.load(artifact).digest
