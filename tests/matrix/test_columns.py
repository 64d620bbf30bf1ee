"""The columns of the matrix: they detect a difference, and only deliberate errors become cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from optkit.errors import ExportFailed
from tests.matrix import columns
from tests.matrix.columns import Cell, Missed, Row


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (np.float32([1.0, 2.001]), "y differs by 5.0e-04"),
        (np.float32([1.0, np.nan]), "y differs by nan"),
        (np.float32([[1.0, 2.0]]), r"y is \[1, 2\] and not \[2\]"),
    ],
)
def test_what_differs_is_reported(found: np.ndarray, told: str) -> None:
    with pytest.raises(Missed, match=told) as caught:
        columns.apart({"y": np.float32([1.0, 2.0])}, {"y": found}, {"batch": 3})
    assert "at {'batch': 3}" in str(caught.value)


def test_the_share_is_of_the_largest_value() -> None:
    a, b = np.float32([0.0, 4.0]), np.float32([1e-4, 4.0])
    assert columns.apart({"y": a}, {"y": b}, {}) == pytest.approx(2.5e-5)
    zero = np.zeros(2, np.float32)
    assert columns.apart({"y": zero}, {"y": zero}, {}) == 0
    with pytest.raises(Missed):
        columns.apart({"y": zero}, {"y": b}, {})


def test_errors_on_purpose_are_cells_and_bugs_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row.__new__(Row)
    row.scratch = tmp_path

    def raising(error: Exception) -> Cell:
        def column(row: Row) -> str:
            raise error

        monkeypatch.setitem(columns.COLUMNS, "exports", column)
        return row.cell("exports")

    failed = raising(ExportFailed("no graph", where=f"{tmp_path}/bert"))
    assert failed == Cell(False, reason="export_failed: …/bert: no graph")
    assert raising(Missed("9 dB")) == Cell(False, reason="9 dB")
    with pytest.raises(KeyError):
        raising(KeyError("x"))
