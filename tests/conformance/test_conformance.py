"""Other people's graphs: what ONNX Runtime runs is equal in both forms, or refused with a reason.

What each part found stands in table.json (`table.py` writes it); a part is judged anew here.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conformance.backend_cases import WHEELS, download
from tests.conformance.judging import judge
from tests.conformance.random_graphs import operators, random_graph
from tests.conformance.table import JSON, PARTS, cases, judge_all, row


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


def test_random_graphs_are_equal_in_both_forms() -> None:
    """A sample of the slow test."""
    outcome = judge(random_graph(0))
    assert outcome.verdict == "equal", outcome


def test_random_graphs_hold_many_operators() -> None:
    assert len(operators([random_graph(seed) for seed in range(40)])) >= 80


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_as_the_table_says(part: str, wheels: Path) -> None:
    if part in WHEELS:
        try:
            download(part, wheels)
        except subprocess.CalledProcessError:
            pytest.skip("no network: the wheel with these tests cannot be downloaded")
    found = row(judge_all(cases(part, wheels, 2000)))
    assert found["wrong"] == found["crashed"] == 0, found["faults"]
    known = json.loads(JSON.read_text())["parts"].get(part)
    if known is not None:
        assert found["refusals"] == known["refusals"]
        assert found["equal"] >= known["equal"]
