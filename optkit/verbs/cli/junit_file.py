"""The JUnit XML of a command, which CI systems show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from optkit.facts.documents.record import Record, Rows
from optkit.facts.documents.result import Result
from optkit.facts.measurement import GateRow
from optkit.show.report.junit import Suite, to_junit
from optkit.verbs.cli import result_files


class _Gates(Record):
    """What is read of a report."""

    gates: Rows[GateRow]


def write(file: Path, suites: Iterable[Suite], *, strict: bool) -> None:
    """Write results and the rows of their gates as JUnit XML. Raises StorageError."""
    result_files.write(file, to_junit(suites, strict=strict))


def write_results(file: Path, results: Sequence[Result], *, strict: bool) -> None:
    """Write each result, or part of a result, with the rows of its gates from the report in its
    artifact. Raises StorageError."""
    each = [part for one in results for part in (one.parts or {"": one}).values()]
    write(file, [Suite.of(one, _gates(one.artifact)) for one in each], strict=strict)


def _gates(artifact: str | None) -> tuple[GateRow, ...]:
    if artifact is None:
        return ()
    return _Gates.model_validate_json((Path(artifact) / "report.json").read_bytes()).gates
