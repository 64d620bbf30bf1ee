"""Results and reports that another machine may have written, checked against the published schemas.

Read are the keywords of JSON schema that `schemas/` uses, which a test compares; jsonschema, a
dependency of the tests alone, is no part of the wheel. Two things differ from a plain validation:
a key that may be null and that an older optkit did not write yet is filled in as null, and a key
that only a newer one knows is kept and not looked at.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from optkit.artifact import MANIFEST, Artifact
from optkit.errors import IntegrityError
from optkit.store import is_shallow

RESULT, REPORT = "result", "report"  # schemas/<name>.json
REPORT_FILE = "report.json"

_REPORT_BYTES = 512 << 20
_INTEGER = 1 << 63  # beyond it no other reader of JSON agrees
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,),
    "null": (type(None),), "number": (int, float), "integer": (int,),
}  # fmt: skip
_CALLED = {dict: "an object", list: "an array", str: "text", bool: "true or false",
           type(None): "null", int: "a number", float: "a number"}  # fmt: skip


class Mismatch(ValueError):
    """A value is not what its schema says; the text names the field: `gate: null or …`."""


def result_of(artifact: Artifact) -> dict[str, Any]:
    """Its optkit.result/v1. Raises IntegrityError, which names the field, unless it is one."""
    where = artifact.path / MANIFEST
    return _checked(artifact.manifest.result, RESULT, where, "result.")


def report_of(artifact: Artifact) -> dict[str, Any]:
    """Its optkit.report/v1 document, whose file `artifact.verify` has compared with the manifest.
    Raises IntegrityError, which names the field, unless it is one."""
    where = artifact.path / REPORT_FILE
    if REPORT_FILE not in artifact.manifest.files:
        raise IntegrityError("an artifact of one graph has this file", where=str(where))
    try:
        data = parsed(where)
    except ValueError as error:
        raise IntegrityError("damaged: not JSON", where=str(where)) from error
    return _checked(data, REPORT, where)


def parsed(file: Path) -> Any:
    """The JSON in a file. Raises ValueError for anything else, also for what is nested too deeply
    to be read."""
    with file.open("rb") as stream:
        text = stream.read(_REPORT_BYTES)
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def conform(data: Any, schema: str) -> Any:
    """A copy of `data`, which fits the schema of that name; where that says nothing, it is JSON
    that can be written again. Raises Mismatch."""
    if not is_shallow(data):
        raise Mismatch("nested too deeply")
    return _fit(data, _schema(schema), schema, "")


def _checked(data: Any, schema: str, where: Path, prefix: str = "") -> dict[str, Any]:
    try:
        found: dict[str, Any] = conform(data, schema)
    except Mismatch as error:
        raise IntegrityError(
            f"{prefix}{error}",
            where=str(where),
            hint="its checksum is right, so it was not damaged on the way: whoever made it did not "
            "use optkit, or another version of it; build the artifact again",
        ) from error
    return found


@cache
def _schema(name: str) -> Any:
    return json.loads((files(__package__) / "schemas" / f"{name}.json").read_text())


def _fit(data: Any, schema: Any, root: str, path: str) -> Any:
    """`data` as the schema has it. `root`: the schema that a reference without a name is to."""
    if "$ref" in schema:
        return _fit(data, *_referred(schema["$ref"], root), path)
    if "anyOf" in schema:
        return _fit_any(data, schema["anyOf"], root, path)
    if "const" in schema and data != schema["const"]:
        raise _wrong(path, repr(schema["const"]), data)
    if "enum" in schema and data not in schema["enum"]:
        raise _wrong(path, " or ".join(map(_named, schema["enum"])), data)
    _check_type(data, schema, path)
    if isinstance(data, dict):
        return _fit_object(data, schema, root, path)
    if isinstance(data, list):
        return _fit_array(data, schema, root, path)
    _check_range(data, schema, path)
    return data


def _fit_any(data: Any, options: list[Any], root: str, path: str) -> Any:
    """All but null, which is none or the first, are tried; the last one's error is told."""
    others = [option for option in options if option.get("type") != "null"]
    if data is None and len(others) < len(options):
        return None
    for option in others[:-1]:
        try:
            return _fit(data, option, root, path)
        except Mismatch:
            continue
    return _fit(data, others[-1], root, path)


def _fit_object(data: dict[str, Any], schema: Any, root: str, path: str) -> dict[str, Any]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = dict(data)
    for key in schema.get("required", ()):
        if key not in found:
            if not _may_be_null(known[key], root):
                raise Mismatch(f"{_below(path, key)}: is missing")
            found[key] = None
    for key, value in found.items():
        if not _is_text(key):
            raise Mismatch(f"{_below(path, key)}: no name: half a character")
        inner = known.get(key, others)
        free = not isinstance(inner, dict)  # a key of a newer optkit, or of an open object
        found[key] = _fit(value, {} if free else inner, root, _below(path, key))
    return found


def _fit_array(data: list[Any], schema: Any, root: str, path: str) -> list[Any]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(data))
    if not least <= len(data) <= most:
        raise Mismatch(f"{path}: has {len(data)} items, not {least}")
    inner = schema.get("items", {})
    return [_fit(one, inner, root, f"{path}[{index}]") for index, one in enumerate(data)]


def _check_type(data: Any, schema: Any, path: str) -> None:
    wanted = schema.get("type", list(_TYPES))
    names = [wanted] if isinstance(wanted, str) else wanted
    if not any(type(data) in _TYPES[name] for name in names):
        raise _wrong(path, " or ".join(_article(name) for name in names), data)
    if isinstance(data, str) and not _is_text(data):
        raise Mismatch(f"{path}: no text: half a character")
    if isinstance(data, float) and not math.isfinite(data):
        raise Mismatch(f"{path}: {data} is no number of JSON")
    if type(data) is int and not -_INTEGER <= data < _INTEGER:
        raise Mismatch(f"{path}: a number of more than 64 bits")


def _check_range(data: Any, schema: Any, path: str) -> None:
    if isinstance(data, str) and not re.search(schema.get("pattern", ""), data):
        raise Mismatch(f"{path}: is not written as {schema['pattern']}")
    if isinstance(data, bool) or not isinstance(data, int | float):
        return
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if not least <= data <= most or data <= schema.get("exclusiveMinimum", -math.inf):
        raise Mismatch(f"{path}: {data} is out of its range")


def _may_be_null(schema: Any, root: str) -> bool:
    if "$ref" in schema:
        return _may_be_null(*_referred(schema["$ref"], root))
    if "anyOf" in schema:
        return any(_may_be_null(option, root) for option in schema["anyOf"])
    return "null" in schema.get("type", ()) or None in schema.get("enum", ())


def _referred(reference: str, root: str) -> tuple[Any, str]:
    """A schema and the name of the file it stands in: urn:optkit:NAME:v1#/a/b, or #/a/b."""
    address, _, pointer = reference.partition("#")
    name = address.split(":")[2] if address else root
    found = _schema(name)
    for part in filter(None, pointer.split("/")):
        found = found[part]
    return found, name


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _below(path: str, key: str) -> str:
    shown = key if len(key) <= 80 and key.isprintable() else ascii(key[:80])
    return f"{path}.{shown}" if path else shown


def _wrong(path: str, wanted: str, data: Any) -> Mismatch:
    shown = _named(data) if isinstance(data, str) and len(data) <= 40 else _CALLED[type(data)]
    return Mismatch(f"{path or 'it'}: {wanted} belongs here, not {shown}")


def _named(value: Any) -> str:
    return "null" if value is None else ascii(value)


def _article(name: str) -> str:
    return {"null": "null", "string": "text", "boolean": "true or false", "object": "an object",
            "array": "an array", "integer": "a whole number"}.get(name, "a number")  # fmt: skip
