"""Full figures are written down, and the pages on reliability show them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests import figures
from tests.figures import Figures


def test_a_few_where_a_change_is_tested() -> None:
    few = Figures(None, "a")
    few.tell("kills", few.times(2, 30), "kill -9")
    assert few.times(2, 30) == 2


def test_the_full_figure_is_written_down(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    for test in ("tests/a.py::test_a[0]", "tests/a.py::test_b"):
        full = Figures(file, test)
        full.tell(test, full.times(2, 30_000), "kill -9")
    rows = json.loads(file.read_text())
    assert [row["test"] for row in rows.values()] == ["tests/a.py::test_a", "tests/a.py::test_b"]
    assert figures.page(rows).count("| 30,000 | all | kill -9 |") == 2


def test_the_page_shows_the_figures() -> None:
    assert figures.PAGE.read_text() == figures.page(json.loads(figures.JSON.read_text()))


def test_the_summary_shows_some_of_the_figures() -> None:
    injected = {what: row["injected"] for what, row in json.loads(figures.JSON.read_text()).items()}
    shown = re.findall(r"^\| (.+) \| ([\d,]+) \|$", figures.SUMMARY.read_text(), re.M)
    assert len(shown) > 10
    for what, faults in shown:
        assert faults == f"{injected[what]:,}", what
