"""Every family goes through optkit as docs/studies/families.md says: what passed passes,
what fails or is refused says why.

The table is written by `python tests/matrix/table.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.matrix import notes, table, worth
from tests.matrix.columns import COLUMNS, REQUIRED, ROWS, answer
from tests.matrix.executor import Shared
from tests.matrix.families import FAMILIES, GROUPS
from tests.matrix.page import page, study
from tests.matrix.row import Row

FOUND = json.loads(table.JSON.read_text())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    executor = Shared(tmp_path_factory.mktemp("worker"))
    yield executor
    executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_as_the_table_says(name: str, tmp_path: Path, shared: Shared) -> None:
    row, told = answer(Row(name, tmp_path, shared)), FOUND["rows"][name]
    if "refused" in told or "refused" in row:
        assert _without_figures(row) == _without_figures(told), name
        return
    for column in REQUIRED:
        assert row[column]["ok"], f"{name}, {column}: {row[column]['reason']}"
    for column, cell in row.items():
        known = told[column]
        reasons = _words(cell["reason"]), _words(known["reason"])
        assert (cell["ok"], reasons[0]) == (known["ok"], reasons[1]), f"{name}, {column}: {cell}"
        assert (cell["value"] is None) == (known["value"] is None), f"{name}, {column}: {cell}"


def _words(reason: str | None) -> str | None:
    """Without figures, which differ from machine to machine."""
    return reason and re.sub(r"[0-9][0-9.e+-]*", "#", reason)


def _without_figures(row: dict[str, object]) -> str | None:
    return _words(json.dumps(row, sort_keys=True))


def test_the_table_is_whole_and_nine_cells_of_ten_pass() -> None:
    rows = FOUND["rows"]
    assert list(rows) == list(ROWS) and len(FAMILIES) >= 60
    cells = [cell for row in rows.values() if "refused" not in row for cell in row.values()]
    assert all(list(row) == list(COLUMNS) for row in rows.values() if "refused" not in row)
    assert all((cell["reason"] is None) == cell["ok"] for cell in cells)
    applied = [cell for cell in cells if cell["value"] is not None or not cell["ok"]]
    assert sum(cell["ok"] for cell in applied) >= 0.95 * len(applied)


def test_few_families_are_refused_and_each_with_a_remedy() -> None:
    refused = [row["refused"] for row in FOUND["rows"].values() if "refused" in row]
    assert len(refused) <= 0.1 * len(FOUND["rows"])
    assert all(told["reason"] and told["remedy"] and told["exit_code"] == 5 for told in refused)


def test_the_pages_are_the_tables() -> None:
    assert table.PAGE.read_text() == page(FOUND, json.loads(worth.JSON.read_text()))
    assert table.STUDY.read_text() == study(FOUND)


def test_the_page_names_every_family_and_marks_those_that_do_not_pass_everything() -> None:
    text = table.PAGE.read_text()
    (works,) = re.findall(r"^## What works\n(.*?)^## ", text, re.DOTALL | re.M)
    rows = [row.removesuffix(" |").split(" | ")[1] for row in works.splitlines() if " | " in row]
    named = "; ".join(rows[1:]).split("; ")
    assert len(named) == len(FAMILIES)
    for told, (name, family) in zip(named, FAMILIES.items(), strict=True):
        of_family = [row for key, row in FOUND["rows"].items() if key.partition("/")[0] == name]
        refused = any("refused" in row for row in of_family)
        whole = not refused and all(cell["ok"] for row in of_family for cell in row.values())
        assert told == family.title + ("" if whole else " (*refused*)" if refused else "¹")


def test_every_group_has_a_note_and_the_gains_are_of_its_models() -> None:
    gains = json.loads(worth.JSON.read_text())
    assert list(GROUPS) == list(worth.GROUPS) == list(notes.WORTH) == list(notes.ADVICE)
    assert gains and list(gains) == [title for title in GROUPS if title in gains]
    for title, models in gains.items():
        assert list(models) == list(worth.GROUPS[title])
        assert all(list(found) == list(worth.PRECISIONS) for found in models.values())


@pytest.mark.parametrize(("gain", "word"), [(1.6, "yes"), (1.2, "measure"), (1.05, "no")])
def test_a_gain_is_worth_shipping_if_its_interval_is_above_one(gain: float, word: str) -> None:
    assert worth.verdict(gain, "encoder") == word
