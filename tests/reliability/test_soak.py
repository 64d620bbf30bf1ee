"""Many rebuilds in one process: what it holds, and what it leaves on the disk, does not grow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.figures import Figures
from tests.scripts import ROOT, script

SOAK = ROOT / "experiments" / "reliability" / "soak.py"
WARM = 4  # rebuilds until every module is imported, and every pool has its threads
UNCHANGED = ("files", "threads", "native_threads", "children", "temporary", "beside")


def growth(curve: list[int]) -> float:
    """By what share the last tenth is above the first tenth behind the warm-up."""
    warm = curve[WARM:]
    tenth = max(1, len(warm) // 10)
    first, last = sum(warm[:tenth]) / tenth, sum(warm[-tenth:]) / tenth
    return last / first - 1


@pytest.mark.slow
def test_rebuilds_leave_nothing(figures: Figures, tmp_path: Path) -> None:
    rebuilds = figures.times(12, 200)
    out = SOAK.with_suffix(".json") if figures.file else tmp_path / "soak.json"
    command = [sys.executable, str(SOAK), str(tmp_path / "scratch"), "--rebuilds", str(rebuilds),
               "--out", str(out)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    curves = json.loads(out.read_text())
    for name in UNCHANGED:
        assert max(curves[name][WARM:]) <= max(curves[name][:WARM]), (name, curves[name])
    assert growth(curves["resident"]) < 0.05, curves["resident"]
    soak = script("experiments/reliability/soak.py")
    collected = slice(soak.GC_EVERY - 1, None, soak.GC_EVERY)
    assert max(curves["store_bytes"][collected]) <= soak.KEPT
    assert max(curves["lock_files"][collected]) == 0
    figures.tell(
        "rebuilds in one process: nothing grows", rebuilds,
        "after random changes of recipe, weights, samples, code and precision, by optkit.build and "
        "the command line in turn: open files, threads, child processes, memory (5 %), temporary "
        "files, files beside the store; with `optkit cache gc` its size too",
    )  # fmt: skip
