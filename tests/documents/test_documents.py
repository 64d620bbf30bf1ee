"""The models of documents, compared with objects that optkit wrote before there were models
(`written/`, with shortened rows and lists), and with the check of jsonschema by the generated
schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from optkit.facts import documents
from optkit.facts.errors import UnknownName

WRITTEN = sorted(Path(__file__).with_name("written").glob("*.json"))


def name_of(data: dict[str, Any]) -> str:
    return str(data["schema"]).removeprefix("optkit.").removesuffix("/v1")


def sorted_text(data: dict[str, Any]) -> str:
    return json.dumps(data, sort_keys=True)  # tells 1 from 1.0


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.stem)
def test_what_was_written_is_read_and_written_again_unchanged(file: Path) -> None:
    data = json.loads(file.read_text())
    found = documents.model(name_of(data)).validate_json(file.read_text())
    assert sorted_text(found.to_json()) == sorted_text(data)
    Draft202012Validator(documents.schema(name_of(data))).validate(data)


def test_every_document_has_such_an_object() -> None:
    assert {name_of(json.loads(file.read_text())) for file in WRITTEN} == set(documents.NAMES)


_SELDOM = {  # keys that were added later, and those of a plan that only some questions answer
    "Recommendation": {"likely"},
    "Result": {"untrained", "translation", "quantized", "sizes"},
    "Fidelity": {"all_zero", "varying", "not_finite", "outputs"},
    "Report": {"layer_times", "findings", "simulation", "padding", "worst", "export"},
    "ComparedSide": {"build"},
    "Explained": {"build", "fixed"},
    "LayerTime": {"copies_ms"},
    "FixedTime": {"unfused_ms"},
    "Plan": {"front"},
    "Asked": {"load_per_s", "load_share"},
    "PlanRow": {"spot", "owned"},
    "PlannedLatency": {"spot_usd_per_million", "load", "feed"},
    "CheapestChoice": {"load"},
    "EngineFacts": {"serving", "latency"},
    "DryRun": {"translation"},
    "TextGeneration": {"adapter", "encode", "speculation"},
}


def parts(name: str) -> dict[str, dict[str, Any]]:
    """The schemas of a document and of its parts, by the names of their classes."""
    schema: dict[str, Any] = documents.model(name).json_schema(mode="serialization")
    whole = {schema["title"]: schema} if "title" in schema else {}
    return {**whole, **documents.schema(name).get("$defs", {})}  # type: ignore[dict-item]


@pytest.mark.parametrize("name", documents.NAMES)
def test_every_key_is_always_there(name: str) -> None:
    Draft202012Validator.check_schema(documents.schema(name))
    for title, inner in parts(name).items():
        if inner.get("type") == "object":
            seldom = {"machine", "finished"} if title == "Provenance" else set()
            seldom |= {"verdict", "log"} if title == "StepFailure" else set()
            seldom |= {"at_least_ms"} if title == "Latency" else set()
            seldom |= {"basis"} if title in {"Score", "Difference"} else set()
            seldom |= {"recommendation"} if title in {"Result", "Fleet", "Tune", "Plan"} else set()
            seldom |= _SELDOM.get(title, set())
            assert set(inner["required"]) == set(inner["properties"]) - seldom, title
            stays_open = title in {"AskedOfCompiler", "StepFailure"} or "Planned" in title
            assert stays_open or inner["additionalProperties"] is False, title


def test_an_unknown_document_is_refused() -> None:
    with pytest.raises(UnknownName, match="document"):
        documents.schema("resul")
