from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.facts.errors import InputRefused
from optkit.ground.data.rows import document, rows

RECORDS = [
    {"text": "one line", "label": "a"},
    {"text": 'a "quoted", text', "label": "b"},
    {"text": "über\nzwei Zeilen", "label": "a"},
]


def written(path: Path, records: list[dict[str, Any]]) -> Path:
    """The records in the format that the suffix says."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(one) + "\n" for one in records))
    else:
        with path.open("w", newline="") as file:
            delimiter = "," if path.suffix == ".csv" else "\t"
            writer = csv.DictWriter(file, list(records[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(records)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"data{suffix}", RECORDS)
    found = list(rows(path, ["text", "label"]))
    assert [(row.text("text"), row.text("label")) for row in found] == [
        (one["text"], one["label"]) for one in RECORDS
    ]


@settings(max_examples=30)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")), max_size=5
    )
)
def test_csv_reads_what_python_writes(tmp_path_factory: Any, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["text"], *([text] for text in texts)])
    assert [row.text("text") for row in rows(path, ["text"])] == texts


def test_a_text_file_is_its_lines_or_one_document(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes("\ufefffirst\r\n\nsecond é\n".encode())
    assert [row.text("text") for row in rows(path, ["text"])] == ["first", "second é"]
    assert [row.where for row in rows(path, ["text"])] == [f"{path}:1", f"{path}:3"]
    assert "".join(document(path)) == "first\n\nsecond é"


@pytest.mark.parametrize(
    ("name", "content", "line", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n[1]\n', ":2", "no JSON object but list"),
        ("a.jsonl", b'{"text": "x"}\n\n{"text": \n', ":3", "not JSON: "),
        ("a.jsonl", b'{"text": "x"}\n{"txt": "x"}\n', ":2", "no field 'text'"),
        ("a.jsonl", b'{"text": null}\n', ":1", "is not text but null"),
        ("a.txt", b"good\nb\xe4d\n", ":2", "not UTF-8"),
        ("a.csv", b"text,label\nx,1\ny\n", ":3", "1 columns, the first line names 2"),
        ("a.csv", b'text\n"x"y\n', ":2", "not CSV"),
        ("a.csv", b"text,label,text\nx,1,y\n", ":1", "names 'text' more than once"),
        ("a.jsonl", b'{"text": "a\\ud83d"}\n', ":1", "a lone surrogate"),
        ("a.parquet", b"PAR1 no more", "", "not a Parquet file"),
    ],
)
def test_what_cannot_be_read_names_its_line(
    tmp_path: Path, name: str, content: bytes, line: str, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputRefused, match=message) as caught:
        for row in rows(path, ["text"]):
            row.text("text")
    assert caught.value.where == f"{path}{line}"


def test_a_missing_column_names_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path / "data.parquet", [{"txt": "x", "label": 1}])
    with pytest.raises(InputRefused, match="no column 'text'") as caught:
        list(rows(path, ["text"]))
    assert caught.value.where == str(path) and caught.value.hint == "did you mean 'txt'?"


def test_a_row_of_parquet_is_reported_by_its_number(tmp_path: Path) -> None:
    path = written(tmp_path / "data.parquet", [{"text": "x"}] * 300 + [{"text": None}])
    with pytest.raises(InputRefused, match="null") as caught:
        for row in rows(path, ["text"]):
            row.text("text")
    assert caught.value.where == f"{path}, row 301"


def test_a_missing_file_says_where_paths_start(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="no such file") as caught:
        rows(tmp_path / "gone.jsonl", ["text"])
    assert "relative to the recipe" in (caught.value.hint or "")
