"""The detector beside its peers: the page is that of the results, and what the docs claim of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scripts import ROOT, script

PAGE = script("experiments/detector/results_page.py")
FOLDER = ROOT / "experiments" / "detector"
RESULTS: dict[str, Any] = json.loads((FOLDER / "results.json").read_text())


def test_the_page_is_that_of_the_results() -> None:
    assert (FOLDER / "results.md").read_text() == PAGE.write(RESULTS)


def test_int8_for_an_l4_is_within_half_a_point_of_fp16() -> None:
    drop = RESULTS["rows"]["optkit INT8, l4"]["drop"]
    assert drop["points"] <= drop["high"] <= 0.5


def test_a_tool_that_failed_and_a_graph_that_is_refused_are_told() -> None:
    rows = {
        "FP32": {"map": 0.8, "map50": 0.9, "scenes": 4, "drop": None, "bytes": 2**20},
        "a": {"failure": "no | such\nfile"},
        "b": {**RESULTS["rows"]["NNCF, defaults"], "landing": {"refused": "no\nkernel"}},
    }
    page = PAGE.write({**RESULTS, "rows": rows})
    assert "| a | failed: no / such file |" in page
    assert "- b: no kernel" in page and "| refused |" in page


@pytest.mark.parametrize(
    "page", ["examples/05_digit_detector/README.md", "docs/how_to/detector.md"]
)
def test_documents_have_the_figures_of_the_results(page: str) -> None:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    wanted = {name: one for name, one in RESULTS["rows"].items() if f"| {name} |" in "".join(lines)}
    assert {"FP32", "optkit INT8, l4", "optkit INT8, cpu"} <= wanted.keys()
    for name, one in wanted.items():
        (line,) = [line for line in lines if line.startswith(f"| {name} |")]
        assert f"| {100 * one['map']:.2f} |" in line
