"""A document may gain fields and never loses one; a recipe stays valid. The JSON schemas of each
version are frozen in `frozen/` and compared with today's."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.documents.frozen_schemas import FROZEN, NAMES, changes, frozen, today

WRITTEN = sorted(Path(__file__).with_name("written").glob("*.json"))


def test_every_schema_is_frozen() -> None:
    assert {file.name.removesuffix(".v1.json") for file in FROZEN.glob("*.json")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_todays_schema_breaks_no_user_of_the_frozen_one(name: str) -> None:
    assert changes(name, today(name)) == []


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.stem)
def test_documents_are_valid_by_the_frozen_schema(file: Path) -> None:
    data = json.loads(file.read_text(encoding="utf-8"))
    schema = frozen(data["schema"].removeprefix("optkit.").removesuffix("/v1"))
    Draft202012Validator(opened(schema)).validate(data)


def opened(schema: Any) -> Any:
    """The schema for a reader that ignores keys that it does not know."""
    if isinstance(schema, list):
        return [opened(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: opened(part) for key, part in schema.items()
        if not (key == "additionalProperties" and part is False)
    }  # fmt: skip


Schema = dict[str, Any]


def lose(schema: Schema) -> None:
    del schema["$defs"]["EngineFacts"]["properties"]["layers"]


def lose_in_the_whole(schema: Schema) -> None:
    result = schema["$defs"]["Result"]
    del result["properties"]["drop"]
    result["required"].remove("drop")


def be_absent_at_times(schema: Schema) -> None:
    schema["$defs"]["EngineFacts"]["required"].remove("backend")


def change_the_type(schema: Schema) -> None:
    schema["$defs"]["GateVerdict"]["properties"]["reasons"] = {"type": "string"}


def become_null(schema: Schema) -> None:
    count = schema["$defs"]["Result"]["properties"]["cache_hits"]
    schema["$defs"]["Result"]["properties"]["cache_hits"] = {"anyOf": [count, {"type": "null"}]}


def gain_a_value(schema: Schema) -> None:
    schema["$defs"]["Result"]["properties"]["status"]["enum"].append("half_built")


def rename_the_schema(schema: Schema) -> None:
    schema["$defs"]["Result"]["properties"]["schema"]["const"] = "optkit.result/v2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lose, ".engine.layers: is gone"),
        (lose_in_the_whole, ".drop: is gone"),
        (be_absent_at_times, ".engine.backend: is not always there"),
        (change_the_type, ".gate.reasons: array became string"),
        (become_null, ".cache_hits: integer became null"),
        (gain_a_value, ".status: the value 'half_built' is new"),
        (rename_the_schema, ".schema: const optkit.result/v1 became optkit.result/v2"),
    ],
)
def test_what_breaks_a_reader_of_documents(change: Callable[[Schema], None], message: str) -> None:
    schema = copy.deepcopy(dict(today("result")))
    change(schema)
    assert message in changes("result", schema)


def test_a_document_may_gain_a_field() -> None:
    schema = copy.deepcopy(dict(today("result")))
    result = schema["$defs"]["Result"]  # type: ignore[index]
    result["properties"]["energy"] = {"type": "number"}
    result["required"].append("energy")
    assert changes("result", schema) == []


def test_no_rule_of_explain_is_lost() -> None:
    """The names are an open text for readers, so the comparison of schemas does not see them."""
    first = {
        "unfused_pair", "left_in_float", "does_not_pay", "layout", "cast", "memory_bound",
        "heavy_weight", "clipped", "coarse", "duplicated", "unread", "weight_axis", "weight_scale",
        "alignment", "sensitive",
    }  # fmt: skip
    for kind in ("ExplainFinding", "LeftFinding"):
        known, now = (
            schema["$defs"][kind]["properties"]["rule"]["examples"]  # type: ignore[index,call-overload]
            for schema in (frozen("explain"), today("explain"))
        )
        assert first <= set(known) <= set(now)


def test_a_recipe_keeps_its_keys_and_gains_no_required_one() -> None:
    schema: Schema = copy.deepcopy(dict(today("recipe")))
    schema["$defs"]["Calibration"]["properties"]["seed"] = {"type": "integer"}
    assert changes("recipe", schema) == []
    schema["$defs"]["Calibration"]["required"] = ["seed"]
    del schema["$defs"]["Calibration"]["properties"]["percentile"]
    schema["$defs"]["Quantization"]["properties"]["weights"]["enum"].remove("hqq")
    assert set(changes("recipe", schema)) == {
        ".calibration.seed: is not always there",
        ".calibration.percentile: is refused",
        ".quantization.weights: the value 'hqq' is new",
    }
