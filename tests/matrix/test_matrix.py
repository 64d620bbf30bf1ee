"""Every family goes through optkit as docs/models.md says: what passed passes, what fails says why.

The table is written by `python tests/matrix/table.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.matrix import table
from tests.matrix.columns import COLUMNS, REQUIRED, ROWS, Row

FOUND = json.loads(table.JSON.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_as_the_table_says(name: str, tmp_path: Path) -> None:
    cells, told = Row(name, tmp_path).cells(), FOUND["rows"][name]
    for column in REQUIRED:
        assert cells[column].ok, f"{column}: {cells[column].reason}"
    for column, cell in cells.items():
        known = told[column]
        reasons = _words(cell.reason), _words(known["reason"])
        assert (cell.ok, reasons[0]) == (known["ok"], reasons[1]), f"{column}: {cell}"


def _words(reason: str | None) -> str | None:
    """Without figures, which differ from machine to machine."""
    return reason and re.sub(r"[0-9][0-9.e+-]*", "#", reason)


def test_the_table_is_whole_and_nine_cells_of_ten_pass() -> None:
    assert list(FOUND["rows"]) == list(ROWS)
    cells = [cell for row in FOUND["rows"].values() for cell in row.values()]
    assert all(list(row) == list(COLUMNS) for row in FOUND["rows"].values())
    assert all((cell["reason"] is None) == cell["ok"] for cell in cells)
    assert sum(cell["ok"] for cell in cells) >= 0.9 * len(cells)


def test_the_page_is_the_tables() -> None:
    assert table.PAGE.read_text() == table.page(FOUND)
