"""Rows are merged into table.json, which tells the rows that other versions gave."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from tests.matrix import table

OLD, NEW = {"torch": "1"}, {"torch": "2"}


def _merged(found: dict[str, Any], names: list[str], versions: dict[str, str]) -> dict[str, Any]:
    for name in names:
        table.merge(found, name, {"of": versions["torch"]}, versions)
    return found


def test_a_row_of_other_versions_is_told_until_it_is_run_again() -> None:
    found = _merged({}, ["gpt2", "bert", "roberta"], OLD)
    assert found["older"] == [] and list(found["rows"]) == ["bert", "roberta", "gpt2"]
    found = _merged({**found, "date": "2026-01-02"}, ["roberta"], NEW)
    assert found["versions"] == NEW and found["rows"]["roberta"] == {"of": "2"}
    assert found["older"] == [{"date": "2026-01-02", "versions": OLD, "rows": ["bert", "gpt2"]}]
    assert _merged(found, ["gpt2", "bert"], NEW)["older"] == []


def test_a_stopped_run_goes_on_with_the_rows_of_other_versions() -> None:
    found = _merged(_merged({}, list(table.ROWS), OLD), ["roberta"], NEW)
    asked = Namespace(page=False, missing=True, rows=None)
    left = [name for name in table.ROWS if name != "roberta"]
    assert table._asked(asked, found, NEW) == left
    assert table._asked(asked, _merged(found, left, NEW), NEW) == []
