"""Rows of a text, JSON-lines, CSV or Parquet file, each with its place in the file.

    .txt             one row per line that is not blank, in the field "text"
    .jsonl .ndjson   one JSON object per line
    .csv .tsv        the first line names the fields
    .parquet         the requested columns, read by pyarrow

The standard library reads the lines. The readers of pyarrow take a third (JSON lines) to a seventh
(CSV) of the processor time (0.4 to 0.7 s instead of 1.5 to 2.7 s for 200 MB, far less than a
tokenizer needs) and four times the memory (118 to 122 instead of 29 MiB). But they number the rows
of a block instead of the lines of the file, guess types from the first block, and accept without an
error what is refused here: a missing field, a repeated column, two objects in a line.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from optkit.facts.errors import InputRefused, nearest
from optkit.ground.data import reading

TEXT = "text"
_PAGES = 1 << 20  # bytes of a column that are fetched at once
_PART = 1 << 17  # characters of a text without rows
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Row:
    """`where`: "corpus.jsonl:17", or "corpus.parquet, row 17"."""

    where: str
    values: Mapping[str, object]

    def text(self, field: str) -> str:
        """A field as text. Raises InputRefused if it is missing or is not text."""
        value = self.value(field)
        if not isinstance(value, str):
            raise InputRefused(f"field {field!r} is not text but {_named(value)}", where=self.where)
        if not value.isascii() and _SURROGATE.search(value):
            hint = r"in JSON \ud800 to \udfff stand in pairs"
            reason = f"field {field!r} has half a character (a lone surrogate)"
            raise InputRefused(reason, where=self.where, hint=hint)
        return value

    def value(self, field: str) -> object:
        """A field. Raises InputRefused with the nearest fields if it is missing."""
        if field not in self.values:
            raise _missing("field", field, self.values, self.where)
        return self.values[field]


def rows(path: str | Path, fields: Sequence[str]) -> Iterator[Row]:
    """All rows of a file, read one by one.

    Raises InputRefused with file and line for a row that cannot be read: not UTF-8, not a JSON
    object, a missing or an extra column, a repeated column of `fields`.
    """
    path = reading.existing(path, "text")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet(path, fields)
    if suffix in (".jsonl", ".ndjson"):
        return _jsonl(path)
    if suffix in (".csv", ".tsv"):
        return _csv(path, fields, "," if suffix == ".csv" else "\t")
    return (Row(where, {TEXT: line}) for where, line in _lines(path) if line.strip())


def document(path: str | Path) -> Iterator[str]:
    """A whole text file in parts, without the end of its last line. Raises InputRefused if it is
    not UTF-8."""
    path = reading.existing(path, "text")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            part = _part(file)
            while following := _part(file):
                yield part
                part = following
    except UnicodeDecodeError:
        for _ in _lines(path):  # reports the line
            pass
        raise
    yield part.removesuffix("\n")


def _part(file: TextIO) -> str:
    part = file.read(_PART)
    if part.endswith("\r"):
        part += file.read(1)
    return part.replace("\r\n", "\n")


def is_text(path: str | Path) -> bool:
    """Whether it is plain text, without fields."""
    return Path(path).suffix.lower() not in (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                hint = "save the file as UTF-8"
                raise InputRefused("not UTF-8 text", where=where, hint=hint) from error
            yield where, text.rstrip("\r\n")


def _jsonl(path: Path) -> Iterator[Row]:
    for where, line in _lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputRefused(f"not JSON: {error}", where=where, hint=_JSONL) from error
        if not isinstance(record, dict):
            reason = f"no JSON object but {_named(record)}"
            raise InputRefused(reason, where=where, hint=_JSONL)
        yield Row(where, record)


_JSONL = 'each line is one object, e.g. {"text": "..."}'


def _csv(path: Path, fields: Sequence[str], delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    ended = (f"{line}\n" for _, line in _lines(path))  # a quoted text may have several lines
    reader = csv.reader(ended, delimiter=delimiter, strict=True)
    names: list[str] | None = None
    try:
        for values in reader:
            where = f"{path}:{reader.line_num}"
            if not values:
                continue
            if names is None:
                names = values
                twice = [field for field in fields if names.count(field) > 1]
                if twice:
                    reason = f"the first line names {twice[0]!r} more than once"
                    raise InputRefused(reason, where=where, hint="rename one of the columns")
            elif len(values) != len(names):
                reason = f"{len(values)} columns, the first line names {len(names)}"
                raise InputRefused(
                    reason, where=where, hint="put quotes around text that contains the delimiter"
                )
            else:
                yield Row(where, dict(zip(names, values, strict=True)))
    except csv.Error as error:
        raise InputRefused(f"not CSV: {error}", where=f"{path}:{reader.line_num}") from error


def _parquet(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    arrow = reading.optional("pyarrow", "data")
    parquet = reading.optional("pyarrow.parquet", "data")
    with path.open("rb") as opened:
        try:
            # otherwise the columns of all row groups are read at once
            file = parquet.ParquetFile(opened, pre_buffer=False, buffer_size=_PAGES)
            for field in fields:
                if field not in file.schema_arrow.names:
                    raise _missing("column", field, file.schema_arrow.names, str(path))
            number = 0
            for batch in file.iter_batches(batch_size=256, columns=list(fields)):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}, row {number}", values)
        except (arrow.ArrowException, OSError) as error:
            raise InputRefused(f"not a Parquet file: {error}", where=str(path)) from error


def _missing(kind: str, name: str, known: Iterable[str], where: str) -> InputRefused:
    known = [str(field) for field in known]
    close = nearest(name, known)
    hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known) or 'none'}"
    return InputRefused(f"there is no {kind} {name!r}", where=where, hint=hint)


def _named(value: object) -> str:
    return "null" if value is None else type(value).__name__
