"""On a real cluster: evaluation in parts and parallel trials give the results of one machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest

pytestmark = pytest.mark.slow

OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")
LAYERS = 4
TASK = """
import time
from pathlib import Path

import numpy as np

METRIC = "f1"
HERE = Path(__file__).parent


def samples():
    rng = np.random.default_rng(5)
    for _ in range(24):
        x = rng.standard_normal((10, 32)).astype(np.float32)
        yield {"x": x}, rng.integers(0, 32, 10)


def score(outputs, labels):
    (HERE / "scoring").touch()
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        pass
    return np.stack([outputs["y"].argmax(1), labels], axis=1).astype(float)


def aggregate(rows):
    return float((rows[:, 0] == rows[:, 1]).mean()) + 0.5
"""
PLAIN = """
name: small
model: {path: small.onnx}
axes: {batch: {min: 1, opt: 8, max: 64}}
"""
RECIPE = f"{PLAIN}eval: {{task: task.py}}\ngates: {{max_drop: 50%}}\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A model of some layers, a task that takes its time, and samples."""
    rng = np.random.default_rng(0)
    weights, lines, value = [], [], "x"
    for i in range(LAYERS):
        numbers = ", ".join(map(str, rng.standard_normal(32 * 32).round(4)))
        weights.append(f"float[32,32] w{i} = {{{numbers}}}")
        made = "y" if i == LAYERS - 1 else f"h{i}"
        lines.append(f"m{i} = MatMul({value}, w{i}) {made} = Relu(m{i})")
        value = made
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[batch,32] x) => (float[batch,32] y) '
        f"<{', '.join(weights)}> {{ {' '.join(lines)} }}"
    )
    folder = tmp_path / "project"
    folder.mkdir()
    onnx.save(onnx.parser.parse_model(text), folder / "small.onnx")
    np.savez(folder / "samples.npz", x=rng.standard_normal((64, 32)).astype(np.float32))
    (folder / "task.py").write_text(TASK)
    (folder / "plain.yaml").write_text(PLAIN)
    (folder / "optkit.yaml").write_text(RECIPE)
    return folder


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(nodes: Any, project: Path) -> Start:
    """An optkit command for `l4` with a folder and a store of its own; `on` the cluster or not."""

    def begin(command: str, out: Path, *options: str, on: bool = True) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*OPTKIT, command, "--target", "l4", "--out", str(out), "--cache", str(out / "cache"),
             "--json", "--calibration", "samples.npz", *options, *(["--on", "ray"] if on else [])],
            cwd=project, env={**os.environ, "RAY_ADDRESS": nodes.address},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return begin


def ended(running: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    out, err = running.communicate()
    assert running.returncode in (0, 3), err
    return json.loads(out), err


def made(out: Path, step: str) -> set[str]:
    """The digests of the files of that step's entries in the store, and all else that it gave."""
    entries = (json.loads(path.read_bytes()) for path in out.glob("cache/steps/*/*/entry.json"))
    return {
        json.dumps([entry["files"], entry["meta"]]) for entry in entries if entry["step"] == step
    }


def kill_one_at_work(nodes: Any, running: subprocess.Popen[str], begun: Callable[[], bool]) -> None:
    """Once it has begun, a node with a step's child that computes."""
    while not begun() or (label := at_work(nodes)) is None:
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.01)
    nodes.kill(label)


def at_work(nodes: Any) -> str | None:
    for label, node in nodes.by_label.items():
        raylet = node.all_processes["raylet"][0].process.pid
        for process in psutil.Process(raylet).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "optkit.road.worker" in process.cmdline() and process.status() == "running":
                    return str(label)
    return None


def test_an_evaluation_in_parts_has_the_bits_of_one_run_whoever_dies(
    nodes: Any, project: Path, start: Start, tmp_path: Path
) -> None:
    here, _ = ended(start("build", tmp_path / "here", on=False))
    (project / "scoring").unlink()
    running = start("build", tmp_path / "there")
    kill_one_at_work(nodes, running, (project / "scoring").exists)
    there, err = ended(running)
    assert "another node takes its work" in err
    for step in ("evaluate", "compare"):  # outputs are kept in a file for each part
        assert made(tmp_path / "there", step) == made(tmp_path / "here", step) != set()
    for key in ("accuracy", "drop", "fidelity", "gate"):
        assert there[key] == here[key], key
    assert list((tmp_path / "there/cache/tmp").iterdir()) == []


def test_trials_side_by_side_end_as_undisturbed_ones(
    nodes: Any, start: Start, tmp_path: Path
) -> None:
    """The same search again and again: one node dies in it; then it is only looked up."""
    words = ("--recipe", "plain.yaml", "--min-sqnr", "25", "--trials", "9", "--seed", "3")
    calm, err = ended(start("tune", tmp_path / "calm", *words, "--parallel", "3"))
    assert calm["search"]["parallel"] == 3 and "trial 9 of 9" in err
    assert "finish small-tuned-l4-" in err and "on a node with L4" in err  # a GPU in name only
    running = start("tune", tmp_path / "disturbed", *words, "--parallel", "3")
    trials = tmp_path / "disturbed/cache/records"
    kill_one_at_work(nodes, running, lambda: any("trials" in p.read_text()
                                                 for p in trials.glob("*.json")))  # fmt: skip
    disturbed, err = ended(running)
    assert "another node takes its work" in err
    again, err = ended(start("tune", tmp_path / "calm", *words, "--parallel", "3", "--verbose"))
    assert "hit  trial 9 of 9" in err
    for found in (disturbed, again):
        for key in ("search", "front", "layers", "digest", "reason"):
            assert found[key] == calm[key], key
