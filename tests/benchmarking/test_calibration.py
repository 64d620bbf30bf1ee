"""How often gates pass wrongly: what is committed, and a few of its situations simulated anew."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "eval" / "gates" / "calibration.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("gate_calibration", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_no_situation_passes_wrongly_in_more_than_one_in_twenty(script: Any) -> None:
    rows = json.loads(FILE.with_suffix(".json").read_text())["rows"]
    at_limit = [row for row in rows if row["truth"] == "at the limit"]
    assert all(row["pass"] <= 0.05 and row["evaluations"] >= 2000 for row in at_limit)
    told = [(row["gate"], row["data"], row["truth"], row["samples"]) for row in rows]
    assert told == [(one.gate, one.data, one.truth, one.samples) for one in script.cases()]


@pytest.mark.parametrize(
    ("data", "samples"),
    [("proportion, 4% of samples differ", 1000), ("mean, losses skewed", 200),
     ("mean, losses neighbours alike", 200)],
)  # fmt: skip
def test_a_candidate_on_the_limit_seldom_passes(script: Any, data: str, samples: int) -> None:
    case = next(one for one in script.cases() if (one.data, one.truth, one.samples, one.early) == (
        data, "at the limit", samples, False))  # fmt: skip
    found = script.run(case, 200)
    assert found["pass"] <= 0.08  # 5 %, and two standard errors of 200 evaluations
    assert found["fail"] <= 0.08
