"""The JSON schema of a recipe: for editors, which complete and check its keys, and for CI."""

from __future__ import annotations

from collections.abc import Iterator

from optkit.facts.documents.schema_texts import DescribedSchema
from optkit.ground.recipe.recipe import Recipe


def json_schema() -> dict[str, object]:
    """The schema of a recipe's YAML, in the subset of draft-07 that editors of YAML know.

    What optkit accepts is valid by it. The converse does not hold: a schema cannot say that an
    axis needs a range, or that a file exists.
    """
    schema = Recipe.model_json_schema(mode="validation", schema_generator=DescribedSchema)
    for node in _nodes(schema):
        node.pop("title", None)  # pydantic's titles repeat the keys
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "urn:optkit:recipe:v1",
        **schema,
        "title": "optkit recipe",
    }


def _nodes(schema: object) -> Iterator[dict[str, object]]:
    """Every schema in a schema. A property that is called "title" is none, and is kept."""
    if isinstance(schema, list):
        for item in schema:
            yield from _nodes(item)
    elif isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            named = key in ("properties", "$defs") and isinstance(value, dict)
            yield from _nodes(list(value.values()) if named else value)
