"""The exit codes and the result object of `optkit build`, on which scripts rely."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from optkit.facts.errors import UsageError
from optkit.ground.artifact import Artifact
from optkit.road.pipeline.evaluation import COMPARED
from optkit.show.report.build_result import failed
from tests.conftest import MainJob

Optkit = Callable[..., Any]


@pytest.fixture
def build(optkit_here: Optkit, store: Path, built: Path, tmp_path: Path) -> Optkit:
    """`optkit build` of the default recipe, whose steps are in the store already."""

    def run(*argv: str) -> Any:
        return optkit_here("build", *argv, "--out", tmp_path / "out", cache=store)

    return run


def test_the_main_job_passes_its_gate(built: Path, main_job: MainJob) -> None:
    result = main_job.result
    artifact = Artifact.load(built / "digits-vit-l4-int8")
    artifact.verify()
    assert artifact.result == result
    assert (result["status"], result["error"]) == ("ok", None)
    assert (result["model"], result["target"], result["precision"]) == ("digits-vit", "l4", "int8")
    engine, landing = result["engine"], result["engine"]["landing"]
    assert (engine["backend"], engine["evidence"]) == ("tensorrt-rtx", "compiled")
    assert "unverified" in engine["note"]
    assert landing["landed"] == landing["planned"] == 18  # four GEMMs a block, patches and head
    assert landing["by_dtype"] == {"int8": 18}
    assert [row["backend"] for row in result["pending"]] == ["tensorrt"]
    assert (result["latency"]["evidence"], result["accuracy"]["evidence"]) == (
        "predicted", "simulated",
    )  # fmt: skip
    assert result["accuracy"]["samples"] == 898 and result["accuracy"]["value"] >= 0.97
    assert result["drop"]["value"] <= 0.005
    assert result["fidelity"]["samples"] == COMPARED  # of the 898
    assert result["gate"] == {"verdict": "pass", "reasons": []}
    assert result["baseline"]["precision"] == "fp16"
    assert result["cache_hits"] == 0


def test_the_latency_is_that_of_the_compiler_that_serves(
    main_job: MainJob, optkit_here: Optkit, tmp_path: Path
) -> None:
    """TensorRT serves on an L4, and TensorRT-RTX compiled the engine here. So the latency is the
    one of the plan, and that of the layers stands beside it under the name of their compiler."""
    argv = ("--recipe", "digits-vit", "--target", "l4", "--batch", "8", "--json")
    planned = optkit_here("plan", *argv, cache=tmp_path / "cache").result["results"]
    calls = {
        row["precision"]: next(one for one in row["latency"] if one["batch"] == 8)
        for row in planned
    }
    result, batch = main_job.result, 8
    for side, figures in (("int8", result), ("fp16", result["baseline"])):
        told, layers = figures["latency"], figures["engine"]["latency"]
        assert calls[side]["batch"] == told["batch"] == layers["batch"] == batch
        assert told["p50_ms"] == pytest.approx(calls[side]["p50_ms"])
        assert told["note"].startswith("from the graph")
        assert layers["note"].startswith("from the layers of the compiled engine")
        assert layers["p50_ms"] > told["p50_ms"]  # of kernels that TensorRT fuses
        assert (figures["engine"]["backend"], figures["engine"]["serving"]) == (
            "tensorrt-rtx", "tensorrt",
        )  # fmt: skip
    assert "predicted for TensorRT)" in result["recommendation"]["sentence"]


def _placeless(result: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which the recommended command does not name the folder of the artifact."""
    found = dict(result)
    sentence = result["recommendation"]["sentence"].replace(result["artifact"], MainJob.NAME)
    return found | {"recommendation": found["recommendation"] | {"sentence": sentence}}


def test_the_second_run_does_nothing(
    build: Optkit, built: Path, main_job: MainJob, tmp_path: Path
) -> None:
    done = build("--target", "l4", "--precision", "int8", "--json")
    steps = json.loads((tmp_path / "out/digits-vit-l4-int8/report.json").read_text())
    steps = steps["provenance"]["steps"]
    assert done.code == 0
    assert done.result["cache_hits"] == len(steps) == sum(step["hit"] for step in steps)
    first = _placeless(main_job.result)
    timeless = {key: value for key, value in _placeless(done.result).items() if key in first}
    for key in ("artifact", "seconds", "cache_hits", "pending"):
        timeless.pop(key), first.pop(key)
    assert timeless == first
    digests = [Artifact.load(f / "digits-vit-l4-int8").digest for f in (built, tmp_path / "out")]
    assert digests[0] == digests[1]


WITHOUT_WORK = """\
import subprocess, sys

def refuse(*args, **kwargs):
    raise AssertionError(f"a worker was started: {args}")

subprocess.Popen = refuse
from optkit.cli import main
try:
    main()
finally:
    heavy = {"torch", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "tensorrt", "tensorrt_rtx"}
    sys.stderr.write(f"loaded: {sorted(heavy & sys.modules.keys())}\\n")
"""


def test_a_full_hit_starts_no_worker_and_loads_no_toolchain(
    optkit_apart: Optkit, built: Path, store: Path, tmp_path: Path
) -> None:
    line = ["build", "--target", "l4", "--precision", "int8", "--json", "--out", tmp_path]
    done = optkit_apart(*line, cache=store, command=[sys.executable, "-c", WITHOUT_WORK])
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "digits-vit-l4-int8/report.json").read_text())
    assert done.result["cache_hits"] == len(report["provenance"]["steps"])
    assert "loaded: []" in done.err


@pytest.mark.parametrize(
    ("limit", "options", "code", "status", "verdict"),
    [
        ("-5%", [], 3, "gate_failed", "fail"),
        ("0.1%", [], 0, "ok", "inconclusive"),
        ("0.1%", ["--strict"], 3, "ok", "inconclusive"),
        ("1%", ["--strict"], 0, "ok", "pass"),
    ],
)
def test_the_gate_decides_the_exit_code_and_the_artifact_is_written_anyway(
    limit: str, options: list[str], code: int, status: str, verdict: str,
    build: Optkit, tmp_path: Path,
) -> None:  # fmt: skip
    done = build("--target", "l4", "--set", f"gates.max_drop={limit}", *options, "--json")
    assert (done.code, done.result["status"]) == (code, status)
    assert done.result["gate"]["verdict"] == verdict
    artifact = Artifact.load(tmp_path / "out/digits-vit-l4-int8")
    artifact.verify()
    assert artifact.result["status"] == status  # marked
    assert ("max_drop" in done.err) == (verdict != "pass")  # why, for the reader
    assert verdict in (artifact.path / "report.md").read_text()


@pytest.mark.slow
def test_a_target_that_nothing_here_compiles_for_is_pending(build: Optkit, tmp_path: Path) -> None:
    done = build("--target", "h100", "--precision", "int8", "--json")
    result = done.result
    place = tmp_path / "out/digits-vit-h100-sxm-int8"
    assert (done.code, result["status"], result["target"]) == (0, "pending", "h100-sxm")
    assert result["engine"]["evidence"] == "pending" and result["engine"]["bytes"] is None
    assert result["pending"] == [{"backend": "tensorrt", "finish": f"optkit finish {place}"}]
    assert result["size"] is None and result["baseline"]["engine"]["evidence"] == "pending"
    assert Artifact.load(place).manifest.engine is None
    text = build("--target", "h100", "--precision", "int8")
    assert f"optkit finish {place}" in text.out


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["--target", "l44"], 2, ["unknown target 'l44'", "l4"]),
        (["--target", "nosuch"], 2, ["unknown target 'nosuch'", "did you mean"]),
        (["--target", "l4", "--precision", "int9"], 2, ["'int9'", "fp32, fp16, bf16, int8"]),
        (
            ["--target", "l4", "--precision", "mxfp8"],
            2,
            ["'mxfp8' is not built: no backend multiplies it: TensorRT-RTX", "fp16, bf16"],
        ),
        (
            ["--target", "l4", "--precision", "fp8-block"],
            2,
            [
                "'fp8-block' is not built: weights in fp8 have a scale for each channel",
                "fp16, bf16",
            ],
        ),
        (["--target", "rtx5090", "--precision", "MXFP4"], 2, ["'MXFP4' is not built", "nvfp4"]),
        (["--target", "l4", "--precision", "tf32"], 2, ["IEEE single precision", "fp32, fp16"]),
        (["--target", "l4", "--precision", "nf4"], 5, ["l4 × nf4", "no kernels", "int8"]),
        (
            ["--target", "t4", "--precision", "fp8"],
            5,
            ["t4 × fp8: fp8 needs compute capability 8.9", "fp16, int8"],
        ),
        (
            ["--target", "t4", "--precision", "int8-weight-only"],
            5,
            ["t4 × int8-weight-only: int8-weight-only needs compute capability 8.0", "fp16, int8"],
        ),
        (["--target", "l4", "--recipe", "digit-vit"], 2, ["'digit-vit'", "digits-vit"]),
        (["--target", "l4", "--recipe", "no/such.yaml"], 2, ["no such recipe", "no/such.yaml"]),
        (["--target", "l4", "--set", "gates.max_dorp=1"], 2, ["unknown key", "max_drop", "--set"]),
        (["--target", "l4", "--set", "gates.max_drop"], 2, ["not KEY=VALUE", "--set"]),
        (["--target", "l4", "--set", "gates.max_drop=5"], 2, ["would be 500 %", "max_drop=5"]),
        (["--target", "l4", "--set", "axes.batch.min=9"], 2, ["min 9 is larger than opt 8"]),
        (["--target", "l4", "--min-shapes", "image:9x1x8x8"], 2, ["larger", "--min-shapes"]),
        (["--target", "l4", "--shapes", "imgae:9x1x8x8"], 2, ["'imgae'", "image", "--shapes"]),
        (["--target", "l4", "--shapes", "image:9x1x8"], 2, ["4 axes, not 3", "batchx1x8x8"]),
        (["--target", "l4", "--memory", "much"], 2, ["'much' is not a size", "512M"]),
        (["--precision", "int8"], 2, ["Missing option '-t' / '--target'"]),
        (["--target", "l4", "--nosuch"], 2, ["No such option"]),
    ],
)
def test_what_cannot_be_is_reported_before_any_work(
    argv: list[str], code: int, told: list[str], optkit_here: Optkit, tmp_path: Path
) -> None:
    cache, out = tmp_path / "cache", tmp_path / "out"
    done = optkit_here("build", *argv, "--out", out, "--json", cache=cache).told(*told, "hint:")
    result = done.result
    assert (done.code, result["status"]) == (code, "impossible" if code == 5 else "error")
    assert result["error"]["message"] in done.err and result["error"]["hint"] in done.err
    assert not cache.exists() and not out.exists()


@pytest.mark.slow
def test_several_pairs_share_their_steps_and_come_in_one_object(
    optkit_here: Optkit, project: Path, tmp_path: Path
) -> None:
    pairs = [(t, p) for t in ("l4", "h100") for p in ("fp16", "int8")]
    argv = ["--target", "l4", "--target", "h100", "--precision", "fp16", "--precision", "int8"]
    done = optkit_here("build", *argv, "--json", cwd=project, cache=tmp_path / "cache")
    assert done.code == 0, done.err
    assert done.result["schema"] == "optkit.results/v1"
    found = [(one["target"], one["precision"]) for one in done.result["results"]]
    assert found == [(t.replace("h100", "h100-sxm"), p) for t, p in pairs]
    ran = re.findall(r"^ +[0-9.]+ s  (.+)$", done.err, re.MULTILINE)
    compiled = [label for label in ran if label.startswith("compile")]
    assert compiled == ["compile fp16 for l4", "compile int8 for l4"]
    for label in ("export small", "fuse", "cast to FP16", "calibrate",
                  "collect calibration samples", "collect evaluation samples"):  # fmt: skip
        assert ran.count(label) == 1, label
    folder = project / done.result["fleet"]
    assert {path.name for path in folder.iterdir()} == {"fleet.json", "report.html", "report.md"}
    fleet = json.loads((folder / "fleet.json").read_text())
    assert fleet["results"] == done.result["results"]
    assert {name: Artifact.load(project / one["path"]).digest
            for name, one in fleet["artifacts"].items()} == {
        name: one["digest"] for name, one in fleet["artifacts"].items()
    }  # fmt: skip
    assert len(fleet["artifacts"]) == 4
    keys = [step["key"] for step in fleet["steps"] if not step["hit"]]
    assert len(keys) == len(set(keys)) and len(keys) < len(fleet["steps"])
    page = (folder / "report.html").read_text()
    for one in done.result["results"]:
        link = f"../small-{one['target']}-{one['precision']}/report.html"
        assert link in page and (folder / link).is_file()


@pytest.mark.slow
def test_the_worst_of_several_decides_and_the_others_are_built(
    optkit_here: Optkit, project: Path, store: Path
) -> None:
    argv = ["--target", "l4", "--target", "t4", "--precision", "mxfp8", "--precision", "fp16"]
    none = optkit_here("build", *argv, "--json", cwd=project, cache=store)
    assert none.code == 2  # a name that is not built stops all of them
    assert {one["error"]["code"] for one in none.result["results"]} == {"unknown_name"}
    argv = ["--target", "h100", "--target", "groq-lpu", "--precision", "fp16"]
    done = optkit_here("build", *argv, "--json", cwd=project, cache=store)
    assert done.code == 5
    assert [one["status"] for one in done.result["results"]] == ["pending", "impossible"]
    assert (project / "artifacts/small-h100-sxm-fp16/manifest.json").exists()
    text = optkit_here("build", *argv, cwd=project, cache=store).told("groq-lpu × fp16")
    assert "small-h100-sxm-fp16" in text.out and text.code == 5


def test_the_baselines_own_precision_is_built_once(build: Optkit) -> None:
    result = build("--target", "l4", "--precision", "fp16", "--json").result
    assert result["speedup"]["value"] == 1 and result["drop"]["value"] == 0
    assert result["gate"]["verdict"] == "pass"
    assert result["size"]["bytes"] == result["size"]["baseline_bytes"]


def test_every_exit_code_of_an_error_is_in_its_result() -> None:
    from optkit.verbs.cli.build import exit_code

    result = failed(UsageError("no"), model=None, target="l4", precision="int8")
    assert exit_code(result, strict=True) == 2
