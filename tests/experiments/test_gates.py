"""How often gates pass wrongly: what is committed, and a few of its situations simulated anew."""

from __future__ import annotations

import json

import pytest

from tests.scripts import ROOT, script

RESULTS = ROOT / "experiments/gates/calibration.json"
SCRIPT = script("experiments/gates/calibration.py")


def test_no_situation_passes_wrongly_in_more_than_one_in_twenty() -> None:
    rows = json.loads(RESULTS.read_text())["rows"]
    at_limit = [row for row in rows if row["truth"] == "at the limit"]
    assert all(row["pass"] <= 0.05 and row["evaluations"] >= 2000 for row in at_limit)
    told = [(row["gate"], row["data"], row["truth"], row["samples"]) for row in rows]
    assert told == [(one.gate, one.data, one.truth, one.samples) for one in SCRIPT.cases()]


def test_an_advised_size_decides_in_four_of_five_fresh_sets() -> None:
    rows = json.loads(RESULTS.read_text())["advised"]
    assert [(row["gate"], row["data"], row["samples"]) for row in rows] == [
        one[:3] for one in SCRIPT.advised()
    ]
    assert all(row["decided"] >= 0.8 and row["sets"] >= 200 for row in rows)


@pytest.mark.parametrize(
    ("data", "samples"),
    [("proportion, 4% of samples differ", 1000), ("mean, losses skewed", 200),
     ("mean, losses neighbours alike", 200)],
)  # fmt: skip
def test_a_candidate_on_the_limit_seldom_passes(data: str, samples: int) -> None:
    case = next(one for one in SCRIPT.cases() if (one.data, one.truth, one.samples, one.early) == (
        data, "at the limit", samples, False))  # fmt: skip
    found = SCRIPT.run(case, 200)
    assert found["pass"] <= 0.08  # 5 %, and two standard errors of 200 evaluations
    assert found["fail"] <= 0.08
