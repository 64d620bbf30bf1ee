"""The matrix of families: rows run anew, into table.json, docs/reference/models.md
and docs/studies/families.md.

    python tests/matrix/table.py                      all rows
    python tests/matrix/table.py --rows bert,t5       these families, in this order; others stay
    python tests/matrix/table.py --columns generation only these columns; other cells stay
    python tests/matrix/table.py --missing            the rows that table.json lacks or has of other
                                                      versions
    python tests/matrix/table.py --page               only the pages, from table.json

A row takes 10 to 60 seconds on one core. Each row is written when it is done, so a run that was
stopped goes on with --missing; until then table.json and the study name the rows of other versions
(`older`). Needs optkit[cpu,rtx,torch,hf].
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.matrix import worth
from tests.matrix.columns import COLUMNS, ROWS, answer
from tests.matrix.executor import Shared
from tests.matrix.page import page, study
from tests.matrix.row import Row

JSON = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[2] / "docs/reference/models.md"
STUDY = Path(__file__).parents[2] / "docs/studies/families.md"
PACKAGES = ("torch", "transformers", "optimum", "onnxscript", "onnxruntime", "tensorrt-rtx")

Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write table.json and its two pages.")
    parser.add_argument("--rows", help="families or rows, separated by commas")
    parser.add_argument("--columns", help="titles, separated by commas", default=",".join(COLUMNS))
    parser.add_argument(
        "--missing", action="store_true", help="rows that table.json lacks or has of other versions"
    )
    parser.add_argument("--page", action="store_true", help="run no row")
    given = parser.parse_args()
    found: Found = json.loads(JSON.read_text()) if JSON.exists() else {}
    versions = {name: version(name) for name in PACKAGES}
    names = _asked(given, found, versions)
    older = {name for one in _older(found, versions) for name in one["rows"]}
    if given.columns != ",".join(COLUMNS) and older.intersection(names):
        parser.error("table.json has these rows of other versions: run all of their columns")
    with tempfile.TemporaryDirectory() as scratch:
        shared = Shared(Path(scratch))
        try:
            for name in names:
                _run(name, given.columns.split(","), found, versions, shared)
        finally:
            shared.close()
    PAGE.write_text(page(found, json.loads(worth.JSON.read_text())))
    STUDY.write_text(study(found))


def _asked(given: argparse.Namespace, found: Found, versions: dict[str, str]) -> list[str]:
    if given.page:
        return []
    if given.missing:
        older = {name for one in _older(found, versions) for name in one["rows"]}
        return [name for name in ROWS if name not in found.get("rows", {}) or name in older]
    if given.rows is None:
        return list(ROWS)
    names = []
    for asked in given.rows.split(","):
        rows = [name for name in ROWS if asked in (name, name.partition("/")[0])]
        if not rows:
            raise SystemExit(f"no family {asked}")
        names += rows
    return names


def _run(
    name: str, columns: list[str], found: Found, versions: dict[str, str], shared: Shared
) -> None:
    """Run a row, or some of its columns, and merge it into table.json."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        row = answer(Row(name, Path(scratch), shared), columns)
    if "refused" not in row:
        cells = {**found.get("rows", {}).get(name, {}), **row}
        row = {column: cells[column] for column in COLUMNS if column in cells}
    seconds = round(time.monotonic() - begun)
    print(f"{name}: {seconds} s", *_lines(row), sep="\n  ", flush=True)
    merge(found, name, row, versions)
    JSON.write_text(json.dumps(found, indent=1) + "\n")


def merge(found: Found, name: str, row: Found, versions: dict[str, str]) -> None:
    """Put a row of today into the table, which tells what is left of other versions."""
    older = [{**one, "rows": [other for other in one["rows"] if other != name]}
             for one in _older(found, versions)]  # fmt: skip
    rows = {**found.get("rows", {}), name: row}
    found |= {
        "date": date.today().isoformat(),
        "versions": versions,
        "older": [one for one in older if one["rows"]],
        "rows": {name: rows[name] for name in ROWS if name in rows},
    }


def _older(found: Found, versions: dict[str, str]) -> list[Found]:
    """The rows of other versions than these: their date, versions and names."""
    older: list[Found] = found.get("older", [])
    if not found or found["versions"] == versions:
        return older
    known = {name for one in older for name in one["rows"]}
    rows = [name for name in found["rows"] if name not in known]
    return [*older, {"date": found["date"], "versions": found["versions"], "rows": rows}]


def _lines(row: Found) -> list[str]:
    if "refused" in row:
        return [f"refused: {row['refused']['reason']}"]
    return [f"{column}: {cell['value'] if cell['ok'] else 'FAILS ' + cell['reason']}"
            for column, cell in row.items()]  # fmt: skip


if __name__ == "__main__":
    main()
