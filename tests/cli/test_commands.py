"""Every command except `build`, once in full: its text, its JSON, its refusals."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest

from optkit.ground.artifact import Artifact
from tests.cli.conftest import small_model

Optkit = Callable[..., Any]


@pytest.fixture
def run(optkit_here: Optkit, small: Path, store: Path) -> Optkit:
    """A command in a project's folder; the shared store has most of what it needs."""
    return lambda *argv: optkit_here(*argv, cwd=small, cache=store)


def assert_plain(done: Any, width: int = 100) -> None:
    """Text for a reader: some, no traceback, no colour codes, no line too long."""
    assert done.code == 0, done.err
    assert done.out.strip() and "Traceback" not in done.err and "\x1b" not in done.out
    assert max(map(len, done.out.splitlines())) <= width, done.out


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("stage", ["export", "fuse", "quantize", "compile"])
def test_a_stage_puts_its_files_into_a_new_folder(stage: str, run: Optkit, tmp_path: Path) -> None:
    pair = ["--target", "l4"] if stage in ("quantize", "compile") else []
    text = run(stage, *pair, "--out", tmp_path / "text")
    done = run(stage, *pair, "--out", tmp_path / "json", "--json")
    assert text.code == done.code == 0, text.err
    found = done.json
    assert (found["schema"], found["status"]) == (f"optkit.{stage}/v1", "ok")
    listed = sorted(path.name for path in (tmp_path / "json").iterdir())
    assert listed == found["files"]
    assert [Path(line).name for line in text.out.splitlines()[: len(listed)]] == listed
    details = json.loads((tmp_path / "json/details.json").read_text())
    assert details == found["details"]
    if stage == "quantize":
        assert "QuantizeLinear" in operators(tmp_path / "json/model.onnx")
        assert set(details["assignment"]["nodes"].values()) == {"int8"}
    elif stage == "compile":
        engine = details["engine"]
        assert (tmp_path / "json" / engine["file"]).stat().st_size == engine["bytes"] > 0
        assert engine["landing"]["landed"] == engine["landing"]["planned"] == 2
    else:
        assert operators(tmp_path / "json/model.onnx") >= {"MatMul", "Relu"}
        assert details["inputs"] == [["x", "float32", ["batch", 16]]]
    again = run(stage, *pair, "--out", tmp_path / "json").told("exists already", "--out")
    assert again.code == 2


@pytest.mark.slow
def test_what_a_fusion_does_and_declines_is_reported(
    optkit_here: Optkit, store: Path, tmp_path: Path
) -> None:
    fuse = ["fuse", "--recipe", "digits-cnn", "--out"]
    done = optkit_here(*fuse, tmp_path / "f", cache=store)
    assert_plain(done)
    assert "BatchNormalization" not in operators(tmp_path / "f/model.onnx")
    counts = {
        rule: int(count)
        for rule, count in re.findall(r"^  (\w+): (\d+) applied$", done.out, re.MULTILINE)
    }
    told = json.loads((tmp_path / "f/details.json").read_text())["log"]["counts"]
    removed = told.pop("remove_unused")
    assert counts == told and counts["fold_batchnorm"] > 1
    assert f"removed {removed} constants without readers" in done.out
    every = optkit_here(*fuse, tmp_path / "v", "--verbose", cache=store)
    names = re.findall(r"^  fold_batchnorm (\S+): applied", every.out, re.MULTILINE)
    assert len(set(names)) == counts["fold_batchnorm"]
    kept = optkit_here(*fuse, tmp_path / "j", "--json", cache=store).json
    assert kept["notes"] == [line.strip() for line in every.out.splitlines() if line[:2] == "  "]


def test_an_engine_that_nothing_here_compiles_is_exit_4(run: Optkit, tmp_path: Path) -> None:
    line = ["compile", "--target", "h100", "--precision", "fp16", "--out", tmp_path / "out"]
    done = run(*line).told("no engine for h100", "optkit build --target h100")
    assert done.code == 4 and not (tmp_path / "out").exists()
    told = run(*line, "--json").json
    assert (told["schema"], told["status"]) == ("optkit.error/v1", "error")
    assert told["error"]["code"] == "toolchain_missing"


@pytest.mark.slow
def test_bench_measures_here_and_predicts_elsewhere(run: Optkit) -> None:
    here, there = (run("bench", "--target", target, "--json").json for target in ("cpu", "l4"))
    for found, evidence, batches in ((here, "measured", [1, 8]), (there, "predicted", [8])):
        assert found["schema"] == "optkit.bench/v1"
        for role in ("latency", "baseline_latency"):
            assert [one["batch"] for one in found[role]] == batches
            assert {one["evidence"] for one in found[role]} == {evidence}
            assert all(one["p50_ms"] > 0 and one["throughput"] > 0 for one in found[role])
        assert [one["batch"] for one in found["speedup"]] == batches
    low, high = here["speedup"][1]["ci95"]
    assert low <= here["speedup"][1]["value"] <= high
    assert (here["baseline"], there["baseline"]) == ("fp32", "fp16")
    text = run("bench", "--target", "cpu")
    assert_plain(text)
    assert text.out.count("measured") == 6


def test_eval_scores_candidate_and_baseline(run: Optkit) -> None:
    found = run("eval", "--target", "cpu", "--json").json
    assert found["schema"] == "optkit.eval/v1"
    assert found["accuracy"]["metric"] == "agreement" and found["accuracy"]["samples"] == 1024
    assert 0.98 < found["accuracy"]["value"] <= 1 == found["baseline_accuracy"]["value"]
    assert found["drop"]["value"] == pytest.approx(1 - found["accuracy"]["value"])
    assert found["fidelity"]["reference"] == "fp32" and found["fidelity"]["sqnr_db"] > 25
    assert found["status"] == "ok"
    text = run("eval", "--target", "cpu")
    assert_plain(text)
    assert "agreement" in text.out and "dB" in text.out
    failed = run("eval", "--target", "cpu", "--set", "gates.max_drop=-20%", "--json")
    assert (failed.code, failed.json["status"]) == (3, "gate_failed")


@pytest.mark.parametrize("command", ["build", "eval"])
def test_one_object_is_printed_where_the_gates_cannot_be_written(
    command: str, run: Optkit, tmp_path: Path
) -> None:
    out = ["--out", tmp_path] if command == "build" else []
    line = [command, "--target", "cpu", *out, "--json", "--junit", "/proc/nowhere/gates.xml"]
    done = run(*line)
    assert (done.code, done.json["error"]["code"]) == (8, "storage")


def test_a_baseline_is_no_worse_and_no_slower_than_itself(run: Optkit) -> None:
    line = ["--target", "cpu", "--precision", "fp32", "--json"]
    limits = ["--set", "gates.max_drop=0.01%", "--set", "gates.max_slice_drop=0.01%"]
    found = run("eval", *line, *limits, "--strict")
    assert found.code == 0, found.err
    assert found.json["drop"]["ci95"] == [0, 0]
    assert [row["ci95"] for row in found.json["gate"]["rows"]] == [[0, 0], [0, 0]]
    for one in run("bench", *line).json["speedup"]:
        assert (one["value"], one["ci95"]) == (1, [1, 1])


def test_inspect_reads_graphs_and_artifacts(run: Optkit, small: Path, tmp_path: Path) -> None:
    graph = run("inspect", "small.onnx", "--json").json
    assert graph["schema"] == "optkit.inspect/v1" and graph["artifact"] is None
    assert graph["graph"]["parameters"] == 16 * 32 + 32 + 32 * 4 + 4
    assert graph["graph"]["operators"] == {"MatMul": 2, "Add": 2, "Relu": 1}
    assert graph["graph"]["macs"] == 16 * 32 + 32 * 4
    text = run("inspect", "small.onnx")
    assert_plain(text)
    assert "676 parameters" in text.out and "batchx16" in text.out and "at batch 1" in text.out
    place = small / "artifacts/small-cpu-int8"
    found = run("inspect", place, "--json").json
    assert found["artifact"]["digest"] == Artifact.load(place).digest
    assert found["artifact"]["result"]["status"] == "ok"
    assert found["graph"]["macs"] == 8 * graph["graph"]["macs"]  # at the batch it is tuned for
    text = run("inspect", place)
    assert text.code == 0 and "files verified" in text.out and "pass" in text.out
    shutil.copytree(place, tmp_path / "copy")
    (tmp_path / "copy/report.md").write_text("all is well")
    changed = run("inspect", tmp_path / "copy", "--json").told("report.md was changed")
    assert changed.code == 7 and changed.json["error"]["code"] == "integrity"
    for path, code in ((tmp_path, 5), (tmp_path / "none.onnx", 2), (small / "task.py", 5)):
        assert run("inspect", path).told("error: ", str(path), "hint: ").code == code


def test_targets_are_listed_with_their_figures(optkit_here: Optkit) -> None:
    found = {one["name"]: one for one in optkit_here("targets", "--json").json["targets"]}
    assert len(found) == 30 and "h100" in found["h100-sxm"]["aliases"]  # 29 devices and the CPU
    assert found["l4"]["compute_capability"] == "8.9"
    assert "fp8" in found["l4"]["precisions"] and "fp8" not in found["t4"]["precisions"]
    text = optkit_here("targets")
    assert_plain(text)
    assert all(name in text.out for name in found)
    one = optkit_here("targets", "4090", "--json").json
    assert (one["schema"], one["name"]) == ("optkit.devices/v1", "rtx4090")
    assert {"value", "source", "verified"} <= one["facts"]["memory_gb"].keys()
    assert one["facts"]["memory_gb"]["source"] in one["sources"]
    told = optkit_here("targets", "l4")
    assert told.code == 0 and "NVIDIA L4" in told.out and "backend tensorrt-rtx" in told.out
    compared = optkit_here("targets", "mi300x").out
    assert compared.count("optkit compiles nothing") == 1 and "unknown" not in compared
    assert optkit_here("targets", "l5").told("unknown target 'l5'", "l4").code == 2


def test_devices_are_those_of_this_machine(optkit_here: Optkit) -> None:
    found = optkit_here("devices", "--json").json
    assert found["schema"] == "optkit.devices/v1"
    assert found["cpu"]["threads"] == len(os.sched_getaffinity(0))
    assert 0 < found["cpu"]["memory_bytes"] <= psutil.virtual_memory().total
    for gpu in found["gpus"]:
        assert gpu["name"] and gpu["memory_bytes"] > 0
    text = optkit_here("devices")
    assert_plain(text)
    assert found["cpu"]["kind"] in text.out
    assert ("no GPU" in text.out.splitlines()[0]) == (not found["gpus"])


@pytest.mark.slow
def test_doctor_says_what_is_missing(optkit_here: Optkit) -> None:
    done = optkit_here("doctor", "--json")
    rows = {row["what"]: row for row in done.json["checks"]}
    assert done.json["schema"] == "optkit.doctor/v1"
    assert {row["state"] for row in rows.values()} <= {"ok", "missing", "broken"}
    assert rows["onnxruntime"]["state"] == "ok" and rows["onnxruntime"]["version"]
    assert rows["one ONNX Runtime"]["state"] == "ok" and done.code == 0
    assert rows["Python"]["version"] == platform.python_version()
    assert "GiB free" in rows["store"]["note"] and " build" in rows["torch"]["note"]
    hardware = ("GPU", "RTX provider")  # a machine has them, or not
    missing = [r for r in rows.values() if r["state"] == "missing" and r["what"] not in hardware]
    assert all("pip install 'optkit[" in row["note"] for row in missing)


def test_the_cache_is_listed_verified_trimmed_and_cleared(
    optkit_here: Optkit, small: Path, store: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(store, cache)
    run = lambda *argv: optkit_here("cache", *argv, "--cache", cache)  # noqa: E731
    found = run("ls", "--json").json
    assert found["schema"] == "optkit.cache/v1" and found["root"] == str(cache)
    steps = {entry["step"] for entry in found["entries"]}
    assert steps >= {"export", "fuse", "calibrate", "quantize", "compile", "evaluate", "bench"}
    text = run("ls")
    assert_plain(text, width=140)  # the folder's path is as long as it is
    assert f"{len(found['entries'])} entries" in text.out
    whole = run("verify", "--json").json
    assert (whole["sound"], whole["corrupt"]) == (len(found["entries"]), [])
    torn = next(entry["key"] for entry in found["entries"] if entry["step"] == "fuse")
    (cache / "steps" / torn[:2] / torn / "model.onnx").unlink()
    broken = run("verify")
    assert broken.code == 7 and f"{torn[:12]} was moved to quarantine" in broken.out
    assert run("verify").code == 0
    for entry in cache.glob("steps/*/*/entry.json"):
        os.utime(entry, (time.time() - 7200,) * 2)  # what is in use is never trimmed
    assert run("clear", "--step", "benhc").told("unknown step 'benhc'", "bench").code == 2
    assert "freed" in run("clear", "--step", "bench").out
    left = {entry["key"] for entry in run("ls", "--json").json["entries"]}
    kept = {entry["key"] for entry in found["entries"] if entry["step"] != "bench"}
    assert left == kept - {torn}
    assert "removed" in run("gc", "--max-size", "100K").out
    rest = run("ls", "--json").json["entries"]
    assert len(rest) < len(left) and not any((cache / "quarantine").iterdir())
    assert "freed" in run("clear").out
    assert run("ls", "--json").json["entries"] == []
    assert run("gc", "--max-size", "lots").told("'lots' is not a size").code == 2


@pytest.mark.parametrize("model", ["model.py:create", "net.onnx", "my nets/the net.onnx"])
def test_init_writes_a_recipe_that_loads(
    model: str, optkit_here: Optkit, tmp_path: Path, weights: dict[str, np.ndarray]
) -> None:
    file = tmp_path / model.partition(":")[0]
    file.parent.mkdir(exist_ok=True)
    file.touch()
    if model.endswith(".onnx"):
        refused = optkit_here("init", model, cwd=tmp_path, cache=tmp_path / "cache")
        assert refused.told("the file is empty", file.name).code == 5
        onnx.save(small_model(weights), file)
    if model.endswith(":create"):
        refused = optkit_here("init", model, cwd=tmp_path, cache=tmp_path / "cache")
        assert refused.told("model.py has no function or class 'create'").code == 2
        file.write_text("def create(): ...\n")
    done = optkit_here("init", model, cwd=tmp_path, cache=tmp_path / "cache")
    assert done.code == 0 and "optkit build" in done.out
    dry = ["build", "--target", "l4", "--precision", "fp16", "--set", "gates.max_drop=2%"]
    planned = optkit_here(*dry, "--dry-run", cwd=tmp_path, cache=tmp_path / "cache")
    assert planned.code == 0 and ("export model" in planned.out or file.suffix == ".onnx")
    assert optkit_here("init", model, cwd=tmp_path).told("exists already", "--out").code == 2
    other = optkit_here("init", model, "--out", "no/folder/r.yaml", cwd=tmp_path)
    assert other.told("no/folder").code == 8


def test_a_model_outside_the_project_of_a_new_recipe(optkit_here: Optkit, tmp_path: Path) -> None:
    (tmp_path / "project/.git").mkdir(parents=True)
    (tmp_path / "model.py").write_text("def create(): ...\n")
    refused = optkit_here("init", "../model.py:create", cwd=tmp_path / "project")
    assert refused.told("outside the project", "copy it into", "--out ../optkit.yaml").code == 2
    there = ("init", "../model.py:create", "--out", "../optkit.yaml")
    assert optkit_here(*there, cwd=tmp_path / "project").code == 0


@pytest.mark.parametrize(
    "command",
    ["", "build", "export", "fuse", "quantize", "compile", "bench", "eval", "inspect", "targets",
     "devices", "doctor", "completion", "init", "cache", "cache ls",
     "cache verify", "cache gc", "cache clear"],
)  # fmt: skip
def test_every_command_has_help(command: str, optkit_here: Optkit) -> None:
    done = optkit_here(*command.split(), "--help")
    assert_plain(done)
    assert done.out.startswith(f"Usage: optkit {command}".rstrip())


@pytest.mark.slow
def test_random_weights_are_reported_and_refused_by_strict(
    optkit_here: Optkit, tmp_path: Path, store: Path
) -> None:
    (tmp_path / "model.py").write_text(
        "from torch import nn\n\ndef create():\n    return nn.Linear(16, 4)\n"
    )
    line = ["model.py:create", "--set", "inputs={x: {dtype: float32, shape: [batch, 16]}}"]
    told = optkit_here("export", *line, "--out", "graph", cwd=tmp_path, cache=store)
    assert told.code == 0
    assert "note: the model is not trained: there is no model.weights" in told.err
    refused = optkit_here("build", *line, "--target", "cpu", "--precision", "fp32", "--strict",
                          cwd=tmp_path, cache=store)  # fmt: skip
    refused.told("not trained", "2 of 2 parameter tensors random", "give model.weights")
    assert refused.code == 5
