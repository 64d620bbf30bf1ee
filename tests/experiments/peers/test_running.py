"""Processes are measured as trees, results are kept exactly as long as they hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import configurations
import environments
import feeds
import kept
import latency
import numpy as np
import process
import psutil
import pytest

PEERS = Path(configurations.__file__).parent
ROOT = PEERS.parents[1]


def child(script: str, limit: float = 60) -> process.Outcome:
    return process.run([sys.executable, "-c", script], variables=dict(os.environ), limit=limit)


def test_memory_of_grandchildren_counts() -> None:
    hold = "import sys; held = bytearray(b'x') * 150_000_000; print(1, flush=True); input()"
    script = (
        "import subprocess, sys, time\n"
        "both = [subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE) for _ in range(2)]\n"
        "[one.stdout.readline() for one in both]\n"  # both hold theirs now
        "time.sleep(1)\n"
        "[one.communicate(b'\\n') for one in both]\n"
        "print('noise'); print('{\"answer\": 1}')"
    ).replace("sys.argv[1]", repr(hold))
    found = child(script)
    assert found.code == 0
    assert found.answer() == {"answer": 1}
    assert 300e6 < found.peak_bytes < 450e6  # two at once, and three interpreters


@pytest.mark.slow
def test_a_failure_names_its_error_and_a_tree_is_ended_at_its_limit(tmp_path: Path) -> None:
    found = child("print('working'); raise ValueError('too many bins')")
    assert found.code == 1
    assert found.answer() == {"failure": "ValueError: too many bins"}
    note = tmp_path / "pid"
    script = (
        "import subprocess, sys, pathlib\n"
        "one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(one.pid))\none.wait()"
    )
    assert child(script, limit=3).code == -9
    grandchild = int(note.read_text())
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == "zombie"


def test_results_are_made_again_only_when_inputs_change(tmp_path: Path) -> None:
    source, made = tmp_path / "model.onnx", []
    source.write_bytes(b"one")

    def make() -> dict[str, int]:
        made.append(len(made))
        return {"value": len(made)}

    def get(fresh: bool = False) -> dict[str, int]:
        inputs = kept.digest({"samples": 8}, source)
        return kept.keep(tmp_path / "kept" / "row.json", inputs, make, fresh=fresh)

    assert get() == get() == {"value": 1}
    source.write_bytes(b"two")
    assert get() == {"value": 2}
    assert get(fresh=True) == {"value": 3}
    assert get() == {"value": 3}
    source.write_bytes(b"three")
    assert kept.recall(tmp_path / "kept" / "row.json") == {"value": 3}
    assert kept.recall(tmp_path / "kept" / "none.json") == {"failure": "not run yet"}


def test_a_failure_is_tried_again(tmp_path: Path) -> None:
    answers = iter([{"failure": "no memory"}, {"value": 1}])
    file = tmp_path / "row.json"
    assert kept.keep(file, "same", lambda: next(answers)) == {"failure": "no memory"}
    assert kept.keep(file, "same", lambda: next(answers)) == {"value": 1}


def test_a_folder_counts_by_its_sources(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.py").write_text("x = 1")
    before = kept.digest(tmp_path)
    (tmp_path / "notes.txt").write_text("not a source")
    assert kept.digest(tmp_path) == before
    (tmp_path / "inner" / "a.py").write_text("x = 2")
    assert kept.digest(tmp_path) != before


def test_feeds_cut_batches_and_refuse_to_give_less(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    rows = np.arange(10).reshape(10, 1)
    np.savez(
        tmp_path / "models" / "w1.npz", **{"test.input": rows, "calibration.input": rows[::-1]}
    )
    found = [feed["input"].ravel().tolist() for feed in feeds.feeds(tmp_path, "w1", "test", 5, 2)]
    assert found == [[0, 1], [2, 3], [4]]
    with pytest.raises(ValueError, match="holds 10, asked for 11"):
        list(feeds.feeds(tmp_path, "w1", "calibration", 11))


def test_ratios_are_of_minima_and_of_rounds() -> None:
    found = latency.summary({"fp32": [4.0, 8.0, 6.0], "other": [2.0, 2.0, 3.0]})
    assert found["other"]["ratio"] == 2.0  # 4 / 2
    assert found["other"]["median_ratio"] == 2.0  # of 2, 4, 2
    assert found["fp32"]["min_ms"] == 4000.0


def test_every_row_has_its_adapter_its_recipe_and_a_name_of_its_own() -> None:
    from optkit.ground.recipe import Recipe

    rows = configurations.CONFIGURATIONS
    assert len({(one.workload, one.key) for one in rows}) == len(rows)
    for workload in configurations.WORKLOADS:
        recipe = Recipe.load(PEERS / "recipes" / f"{workload}.yaml")
        assert recipe.name == f"peers-{workload}"
        peers = {one.peer for one in rows if one.workload == workload}
        assert {"optkit", *environments.REQUIREMENTS} <= peers
    for one in rows:
        assert (PEERS / f"with_{one.peer}.py").exists()


@pytest.mark.slow
def test_quick_mode_trains_quantizes_scores_times_and_compiles(tmp_path: Path) -> None:
    command = [sys.executable, "experiments/peers/run.py", "--quick", "--root", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())["workloads"]["w1"]
    row = found["rows"]["onnxruntime-static"]
    assert row["bytes"] < 0.3 * found["fp32"]["bytes"]
    assert row["score"]["accuracy"] > 95
    assert 25 < row["score"]["sqnr_db"] < 60
    assert found["latency"]["1"]["onnxruntime-static"]["rounds"] >= 5
    assert found["fp32"]["landing"]["layers"] > 10
    assert (
        "uint8" in row["landing"]["refused"].lower() or "int32" in row["landing"]["refused"].lower()
    )
