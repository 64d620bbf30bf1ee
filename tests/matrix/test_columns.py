"""The columns of the matrix: they detect a difference, and only deliberate errors become cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from optkit.facts.errors import ExportFailed
from tests.matrix import columns, generation, padding
from tests.matrix.row import Cell, Missed, Row, apart


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
        apart({"y": np.float32([1.0, 2.0])}, {"y": found}, {"batch": 3})
    assert "at {'batch': 3}" in str(caught.value)


def test_the_share_is_of_the_largest_value() -> None:
    a, b = np.float32([0.0, 4.0]), np.float32([1e-4, 4.0])
    assert apart({"y": a}, {"y": b}, {}) == pytest.approx(2.5e-5)
    zero = np.zeros(2, np.float32)
    assert apart({"y": zero}, {"y": zero}, {}) == 0
    with pytest.raises(Missed):
        apart({"y": zero}, {"y": b}, {})


def test_errors_on_purpose_are_cells_and_bugs_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row.__new__(Row)
    row.scratch = tmp_path

    def raising(error: Exception) -> Cell:
        def column(row: Row) -> str:
            raise error

        monkeypatch.setitem(columns.COLUMNS, "exports", column)
        return columns.cell(row, "exports")

    failed = raising(ExportFailed("no graph", where=f"{tmp_path}/bert"))
    assert failed == Cell(False, reason="export_failed: …/bert: no graph")
    assert raising(Missed("9 dB")) == Cell(False, reason="9 dB")
    with pytest.raises(KeyError):
        raising(KeyError("x"))


def test_a_refused_family_has_no_cells_but_the_words_of_the_refusal(tmp_path: Path) -> None:
    row = Row("longformer", tmp_path)
    refused = columns.answer(row)["refused"]
    assert refused == {
        "code": "export_failed", "exit_code": 5, "reason": refused["reason"],
        "remedy": refused["remedy"],
    }  # fmt: skip
    assert "values of a tensor" in refused["reason"] and str(tmp_path) not in refused["reason"]
    assert "torch.where" in refused["remedy"]


def test_a_difference_at_real_tokens_is_found_and_one_at_padding_is_not() -> None:
    alone = [{"y": np.ones((1, 2), np.float32)}, {"y": np.ones((2, 2), np.float32)}]
    batch = np.ones((2, 2, 2), np.float32)
    batch[0, 1] = 9.0  # behind the end of the first sample
    assert padding.worst({"y": batch}, alone) == 0
    batch[1, 1] = 9.0
    with pytest.raises(Missed, match="sample': 1"):
        padding.worst({"y": batch}, alone)


def test_samples_are_padded_on_the_side_that_is_asked_for() -> None:
    short, long = np.array([[5, 6]]), np.array([[7, 8, 9]])
    assert padding.stacked([short, long], 0).tolist() == [[5, 6, 0], [7, 8, 9]]
    assert padding.stacked([short, long], 1, left=True).tolist() == [[1, 5, 6], [7, 8, 9]]


def test_another_text_is_a_missed_limit() -> None:
    text = [*range(3, 3 + generation.NEW)]
    generation.check_equal([text], [text], "alone")
    with pytest.raises(Missed, match="alone"):
        generation.check_equal([[*text[:-1], 90]], [text], "alone")
