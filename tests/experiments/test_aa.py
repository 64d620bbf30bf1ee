"""The script that checks the protocol runs; what it finds depends on the machine."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "latency" / "aa.py"


@pytest.mark.slow
def test_each_experiment_says_what_its_intervals_contain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "aa.json"
    line = [str(SCRIPT), str(out), "--comparisons", "2", "--seconds", "0.1"]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    told = json.loads(out.read_text())
    assert set(told["holds"]) == set(told["experiments"]) == {"equal", "slower", "equal, loaded"}
    for found in told["experiments"].values():
        assert found["comparisons"] == len(found["intervals"]) == 2
        assert all(low <= high for low, high in found["intervals"])
        assert sum(found["limit_5_percent"].values()) == 2
