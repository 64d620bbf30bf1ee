"""The detector beside its peers: what the docs claim of it is in the results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scripts import ROOT

FOLDER = ROOT / "experiments" / "detector"
RESULTS: dict[str, Any] = json.loads((FOLDER / "results.json").read_text())


def test_int8_for_an_l4_is_within_half_a_point_of_fp16() -> None:
    drop = RESULTS["rows"]["optkit INT8, l4"]["drop"]
    assert drop["points"] <= drop["high"] <= 0.5


@pytest.mark.parametrize(
    "page", ["examples/05_digit_detector/README.md", "docs/studies/detector.md"]
)
def test_documents_have_the_figures_of_the_results(page: str) -> None:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    wanted = {name: one for name, one in RESULTS["rows"].items() if f"| {name} |" in "".join(lines)}
    assert {"FP32", "optkit INT8, l4", "optkit INT8, cpu"} <= wanted.keys()
    for name, one in wanted.items():
        (line,) = [line for line in lines if line.startswith(f"| {name} |")]
        assert f"| {100 * one['map']:.2f} |" in line
