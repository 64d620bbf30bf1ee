"""The script that lists the CPU seconds of each step runs; what they are depends on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "build_time" / "steps.py"
MODEL = '<ir_version: 10, opset_import: ["" : 21]> g (float[N,2] x) => (float[N,2] y) {y = Relu(x)}'


def test_steps_are_listed_with_the_workers_that_they_share(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    line = [sys.executable, SCRIPT, "steps.json", "fuse", "m.onnx", "-o", "out", "--cache", "store"]
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
    told = json.loads((tmp_path / "steps.json").read_text())
    assert [(row["step"], row["shared"]) for row in told["steps"]] == [
        ("export", False),
        ("fuse", True),
    ]
    assert all(row["cpu_s"] >= 0 for row in told["steps"]) and told["command_cpu_s"] > 0
