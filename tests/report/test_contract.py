"""The check of foreign results and reports, beside jsonschema's of the same schemas."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

import optkit.report
from optkit.report.contract import Mismatch, conform
from tests.report.conftest import one_row_each

FOLDER = Path(optkit.report.__file__).parent / "schemas"
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
REGISTRY: Registry[Any] = Registry().with_resources(
    (schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS.values()
)
VALIDATOR = Draft202012Validator(SCHEMAS["report"], registry=REGISTRY)
READ = {
    "$ref", "anyOf", "const", "enum", "type", "properties", "required", "additionalProperties",
    "items", "minItems", "maxItems", "pattern", "minimum", "maximum", "exclusiveMinimum",
}  # fmt: skip
TELL = {"$schema", "$id", "$defs", "title", "description"}


def _keywords(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        yield key
        if key in ("properties", "$defs"):
            for inner in value.values():
                yield from _keywords(inner)
        elif key == "anyOf":
            for inner in value:
                yield from _keywords(inner)
        elif key in ("items", "additionalProperties"):
            yield from _keywords(value)


def test_every_keyword_of_the_schemas_is_read() -> None:
    assert {key for schema in SCHEMAS.values() for key in _keywords(schema)} <= READ | TELL


@pytest.mark.parametrize("kind", [{}, {"measure": True}, {"suspect": True}])
def test_what_builds_write_is_left_as_it_is(make: Any, kind: dict[str, Any]) -> None:
    report = make(**kind)
    assert conform(report, "report") == report
    assert conform(report["result"], "result") == report["result"]


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("result", "gate"), ["pass"], "result.gate: an object belongs here, not an array"),
        (("result", "gate", "verdict"), "fine", "'pass' or 'fail' or 'inconclusive' belongs here"),
        (("result", "latency", "p50_ms"), "2", "result.latency.p50_ms: a number belongs here"),
        (("result", "latency", "p50_ms"), True, "a number belongs here, not true or false"),
        (("result", "latency", "batch"), 0, "result.latency.batch: 0 is out of its range"),
        (("result", "drop", "ci95"), [1.0], "result.drop.ci95: has 1 items, not 2"),
        (("landing", 1, "node"), None, "landing[1].node: text belongs here, not null"),
        (("layers",), None, "layers: an object belongs here, not null"),
        (("conditions", "load"), float("nan"), "conditions.load: nan is no number of JSON"),
        (("conditions", "load"), 1 << 70, "conditions.load: a number of more than 64 bits"),
        (("result", "model"), "\ud800", "result.model: no text: half a character"),
        (("provenance", "build_spec", "engine", "profile", "x"), [1], "profile.x: has 1 items"),
        (("schema",), "optkit.report/v2", "schema: 'optkit.report/v1' belongs here"),
    ],
)
def test_the_field_that_is_wrong_is_named(make: Any, path: Any, value: Any, told: str) -> None:
    report = copy.deepcopy(make())
    inner = report
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(Mismatch) as caught:
        conform(report, "report")
    assert told in str(caught.value)


def test_keys_that_an_older_version_lacks_are_null_and_those_of_a_newer_one_stay(make: Any) -> None:
    result = make(suspect=True)["result"]
    older = {key: result[key] for key in result if key != "calibration"}
    assert conform({**older, "newer": 1}, "result") == {**result, "calibration": None, "newer": 1}
    with pytest.raises(Mismatch, match="pending: is missing"):
        conform({key: result[key] for key in result if key != "pending"}, "result")


def test_what_is_nested_without_end_is_refused(make: Any) -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(Mismatch, match="nested too deeply"):
        conform({**make(), "conditions": {"deep": deep}}, "report")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if not isinstance(value, dict | list):
        return
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        yield from _places(one, (*path, key))


@settings(max_examples=60)
@given(data=st.data())
def test_what_it_takes_jsonschema_takes(make: Any, data: st.DataObject) -> None:
    report = copy.deepcopy(one_row_each(make()))
    *path, last = data.draw(st.sampled_from(list(_places(report))))
    inner = report
    for key in path:
        inner = inner[key]
    inner[last] = data.draw(st.sampled_from([None, [], {}, "x", "", 0, -1, 1.5, True, [1.0, 2.0]]))
    try:
        found = conform(report, "report")
    except Mismatch:
        assert not VALIDATOR.is_valid(report)
    else:  # with nulls where they were missing
        assert VALIDATOR.is_valid(found)
