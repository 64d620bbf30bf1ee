"""Checks results and reports that another machine may have written against their models.

A key that may be null, and that an older optkit did not write, is added as null. A key that only a
newer version knows is kept and ignored. Values that the model does not restrict must be JSON that
can be written again: no NaN, no number of more than 64 bits, no lone surrogate, limited nesting.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from optkit.facts.documents.record import Record
from optkit.facts.documents.report import Report
from optkit.facts.documents.result import Result
from optkit.facts.errors import IntegrityError
from optkit.ground.artifact import MANIFEST, Artifact
from optkit.ground.store import is_shallow

REPORT_FILE = "report.json"

Checked = TypeVar("Checked", bound=Record)

_REPORT_BYTES = 512 << 20
_INTEGER = 1 << 63  # beyond it no other reader of JSON agrees


class ContractMismatch(ValueError):
    """A value does not fit its model; the text names the field: `gate: input should be …`."""


def result_of(artifact: Artifact) -> Result:
    """Its optkit.result/v1. Raises IntegrityError, which names the field, unless it is one."""
    return _checked(artifact.manifest.result, Result, artifact.path / MANIFEST, "result.")


def report_of(artifact: Artifact) -> Report:
    """Its optkit.report/v1 document, whose file `artifact.verify` has compared with the manifest.
    Raises IntegrityError, which names the field, unless it is one, and InputRefused if this is a
    slim copy."""
    where = artifact.require(REPORT_FILE)
    if REPORT_FILE not in artifact.manifest.files:
        raise IntegrityError(
            "the file is missing, but an artifact of one graph has it", where=str(where)
        )
    try:
        data = parsed(where)
    except ValueError as error:
        raise IntegrityError("damaged: not JSON", where=str(where)) from error
    return _checked(data, Report, where)


def parsed(file: Path) -> object:
    """The JSON in a file. Raises ValueError for anything else, and for JSON that is nested too
    deeply."""
    with file.open("rb") as stream:
        text = stream.read(_REPORT_BYTES)
    try:
        data: object = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return data


def conform(data: object, model: type[Checked]) -> Checked:
    """JSON as the document that it should be. Raises ContractMismatch."""
    if not is_shallow(data):
        raise ContractMismatch("nested too deeply")
    _check_values(data, "")
    try:
        return model.from_json(data)
    except ValidationError as error:
        raise _mismatch(error) from error


def _checked(data: object, model: type[Checked], where: Path, prefix: str = "") -> Checked:
    try:
        return conform(data, model)
    except ContractMismatch as error:
        raise IntegrityError(
            f"{prefix}{error}",
            where=str(where),
            hint="its checksum is correct, so it was not damaged: another program, or another "
            "version of optkit, wrote it; build the artifact again",
        ) from error


def _mismatch(error: ValidationError) -> ContractMismatch:
    """The first thing that is wrong, and its place."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ""
    for part in first["loc"]:
        place = f"{place}[{part}]" if isinstance(part, int) else _below(place, part)
    told = "is missing" if first["type"] == "missing" else first["msg"].replace("Input", "it", 1)
    return ContractMismatch(f"{place or 'it'}: {told}")


def _check_values(data: object, place: str) -> None:
    """Raises ContractMismatch for what Python reads as JSON, and other readers do not."""
    if isinstance(data, dict):
        for key, value in data.items():
            if not _is_text(key):
                raise ContractMismatch(f"{_below(place, key)}: no name: half a character")
            _check_values(value, _below(place, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            _check_values(value, f"{place}[{index}]")
    elif isinstance(data, str) and not _is_text(data):
        raise ContractMismatch(f"{place}: no text: half a character")
    elif isinstance(data, float) and not math.isfinite(data):
        raise ContractMismatch(f"{place}: {data} is no number of JSON")
    elif isinstance(data, int) and not -_INTEGER <= data < _INTEGER:
        raise ContractMismatch(f"{place}: a number of more than 64 bits")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _below(place: str, key: str) -> str:
    shown = key if len(key) <= 80 and key.isprintable() else ascii(key[:80])
    return f"{place}.{shown}" if place else shown
