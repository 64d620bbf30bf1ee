"""The JSON schema of a recipe accepts what optkit accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from jsonschema import Draft7Validator, Draft202012Validator

from optkit.facts.errors import RecipeError
from optkit.facts.precisions import PRECISIONS
from optkit.ground.devices import names
from optkit.ground.recipe import Recipe, yaml_document
from optkit.ground.recipe.json_schema import json_schema

SCHEMA = json_schema()
ROOT = Path(__file__).parents[2]
RECIPES = sorted(ROOT.glob("recipes/*.yaml")) + sorted(ROOT.glob("examples/*/optkit.yaml"))


def accepts(data: object) -> bool:
    return bool(Draft7Validator(SCHEMA).is_valid(data))


def test_it_is_a_schema_of_both_drafts() -> None:
    Draft7Validator.check_schema(SCHEMA)
    Draft202012Validator.check_schema(
        {**SCHEMA, "$schema": Draft202012Validator.META_SCHEMA["$id"]}
    )
    assert "prefixItems" not in str(SCHEMA)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_project_is_valid(path: Path) -> None:
    data = yaml_document.parse(path.read_bytes(), str(path)).data
    Draft7Validator(SCHEMA).validate(data)


FRACTIONS = st.one_of(
    st.none(),
    st.floats(-2, 2),
    st.integers(-3, 3),
    st.sampled_from(["1%", "0.5 %", "-2%", "150%", "1", "%", "1 percent"]),
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_drop": FRACTIONS,
        "min_value": FRACTIONS,
        "max_latency_ms": st.one_of(st.none(), st.integers(-1, 5), st.text(max_size=2)),
        "accept": st.lists(st.sampled_from(["measured", "predicted", "guessed"]), max_size=2),
        "max_bites": st.integers(),
    },
)
RECIPE = st.fixed_dictionaries(
    {"name": st.sampled_from(["net", "a b", "x/y", ""])},
    optional={
        "axes": st.dictionaries(
            st.sampled_from(["batch", "rows"]),
            st.one_of(
                st.integers(-1, 4),
                st.fixed_dictionaries({key: st.integers(-1, 4) for key in ("min", "opt", "max")}),
            ),
        ),
        "inputs": st.dictionaries(
            st.just("x"),
            st.fixed_dictionaries(
                {
                    "dtype": st.sampled_from(["float32", "int64", "float8", 1]),
                    "shape": st.lists(
                        st.one_of(st.integers(-1, 3), st.just("batch"), st.none()), max_size=3
                    ),
                },
                optional={"range": st.lists(st.floats(-1, 1), max_size=3)},
            ),
        ),
        "gates": st.one_of(
            LIMITS,
            st.fixed_dictionaries(
                {"targets": st.dictionaries(st.sampled_from(["l4", "cpu", "l5"]), LIMITS)}
            ),
        ),
        "quantization": st.fixed_dictionaries(
            {},
            optional={
                "nodes": st.dictionaries(st.just("fc*"), st.sampled_from(["int8", "int3", "fp16"])),
                "smooth": st.sampled_from(["auto", "off", 0.5, 1.5, True]),
                "block_size": st.sampled_from([16, 24, None, "32"]),
            },
        ),
        "bench": st.fixed_dictionaries(
            {}, optional={"seconds": st.sampled_from([1, 0, 5000, "1"])}
        ),
        "colour": st.text(max_size=3),
    },
)


@settings(max_examples=200, deadline=None)
@given(RECIPE)
@example({"name": "net", "inputs": {"x": {"dtype": "int64", "shape": [1], "range": []}}})
def test_what_optkit_accepts_is_valid(data: dict[str, Any]) -> None:
    try:
        Recipe.from_dict(data)
    except RecipeError:
        return
    assert accepts(data)


@pytest.mark.parametrize(
    "data",
    [
        {"name": "net", "precison": "int8"},
        {"name": "a b"},
        {"name": "net", "gates": {"max_drop": "one percent"}},
        {"name": "net", "gates": {"max_drop": 2}},
        {"name": "net", "gates": {"targets": {"l5": {}}}},
        {"name": "net", "quantization": {"nodes": {"fc": "int3"}}},
        {"name": "net", "inputs": {"x": {"dtype": "float8", "shape": [1]}}},
        {"name": "net", "axes": {"batch": 0}},
        {},
    ],
    ids=str,
)
def test_mistakes_that_an_editor_marks(data: dict[str, Any]) -> None:
    assert not accepts(data)
    with pytest.raises(RecipeError):
        Recipe.from_dict(data)


def test_an_editor_completes_targets_and_precisions() -> None:
    definitions: Any = SCHEMA["$defs"]
    targets = definitions["Gates"]["properties"]["targets"]["propertyNames"]["enum"]
    assert set(targets) == set(names())
    nodes = definitions["Quantization"]["properties"]["nodes"]["additionalProperties"]
    assert set(nodes["enum"]) == set(PRECISIONS)
