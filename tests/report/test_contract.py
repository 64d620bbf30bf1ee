"""The check of foreign results and reports, compared with jsonschema's check by the generated
schemas."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from optkit.facts import documents
from optkit.facts.documents.report import Report
from optkit.facts.documents.result import Result
from optkit.show.report.contract import ContractMismatch, conform
from tests.report.conftest import one_row_each

VALIDATOR = Draft202012Validator(documents.schema("report"))


@pytest.mark.parametrize("kind", [{}, {"measure": True}, {"suspect": True}])
def test_what_builds_write_is_left_as_it_is(make: Any, kind: dict[str, Any]) -> None:
    report = make(**kind)
    assert conform(report, Report).to_json() == report
    assert conform(report["result"], Result).to_json() == report["result"]


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("result", "gate"), ["pass"], "result.gate: it should be an object"),
        (
            ("result", "gate", "verdict"),
            "fine",
            "verdict: it should be 'pass', 'fail' or 'inconclusive'",
        ),
        (("result", "latency", "p50_ms"), "2", "result.latency.p50_ms: it should be a number"),
        (("result", "latency", "p50_ms"), True, "p50_ms: it should be a number"),
        (("result", "latency", "batch"), 0, "batch: it should be greater than or equal to 1"),
        (("result", "drop", "ci95"), [1.0], "result.drop.ci95[1]: is missing"),
        (("landing", 1, "node"), None, "landing[1].node: it should be a valid string"),
        (("layers",), None, "layers: it should be an object"),
        (("conditions", "load"), float("nan"), "conditions.load: nan is no number of JSON"),
        (("conditions", "load"), 1 << 70, "conditions.load: a number of more than 64 bits"),
        (("result", "model"), "\ud800", "result.model: no text: half a character"),
        (("provenance", "build_spec", "engine", "profile", "x"), [1], "profile.x[0]: it should be"),
        (("schema",), "optkit.report/v2", "schema: it should be 'optkit.report/v1'"),
    ],
)
def test_the_field_that_is_wrong_is_named(make: Any, path: Any, value: Any, told: str) -> None:
    report = copy.deepcopy(make())
    inner = report
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ContractMismatch) as caught:
        conform(report, Report)
    assert told in str(caught.value)


def test_keys_that_an_older_version_lacks_are_null_and_those_of_a_newer_one_stay(make: Any) -> None:
    result = make(suspect=True)["result"]
    older = {key: result[key] for key in result if key != "calibration"}
    found = conform({**older, "newer": 1}, Result).to_json()
    assert found == {**result, "calibration": None, "newer": 1}
    with pytest.raises(ContractMismatch, match="pending: is missing"):
        conform({key: result[key] for key in result if key != "pending"}, Result)


def test_what_is_nested_without_end_is_refused(make: Any) -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ContractMismatch, match="nested too deeply"):
        conform({**make(), "conditions": {"deep": deep}}, Report)


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
    inner[last] = data.draw(st.sampled_from([None, [], {}, "x", "", 0, -1, 1.5, True, [1.5, 2.5]]))
    try:
        found = conform(report, Report).to_json()
    except ContractMismatch:
        assert not VALIDATOR.is_valid(report)
    else:  # with nulls where they were missing
        assert VALIDATOR.is_valid(found)
