"""docs/reference/recipe_keys.md: every key of a recipe, from the models in optkit/ground/recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from look_up import forms, markdown
from optkit.ground.recipe.json_schema import json_schema

Schema = Mapping[str, Any]
NAMED = {"inputs": "NAME", "axes": "NAME", "targets": "TARGET"}
"""Keys whose value has a name of the user below it, and what stands for this name."""


def page() -> str:
    schema = json_schema()
    return markdown.page(
        "# Keys of a recipe",
        "Every key with its type, its default and what it does. [Recipes](recipe.md) explains how "
        "a recipe is found, written and overridden. "
        + markdown.made_from("the models that check a recipe")
        + " `optkit schema recipe` prints the same for editors.",
        *sections(schema, "", "", schema),
    )


def sections(schema: Schema, path: str, about: str, root: Schema) -> Iterator[str]:
    """The table of a section, then those of the sections in it."""
    if path:
        yield f"## {path}"
        yield " ".join(about.split())
    needed, inner, rows = schema.get("required", ()), [], []
    for name, key in schema["properties"].items():
        place = f"{path}.{name}" if path else name
        below = section_of(name, key, root)
        if below is not None:
            inner.append((f"{place}.{NAMED[name]}" if name in NAMED else place, below))
        given = default(key, name in needed, below)
        kind_ = kind(name, key, place, below)
        rows.append((markdown.code(place), kind_, given, key["description"]))
    yield markdown.table(["key", "type", "default", "what it does"], rows)
    for place, below in inner:
        if place != "gates.targets.TARGET":  # has the keys of gates
            yield from sections(below, place, below["description"], root)


def section_of(name: str, key: Schema, root: Schema) -> Schema | None:
    """The section that a key holds, or each of its names; None for a plain value."""
    candidates = [key, *key.get("anyOf", ())]
    if name in NAMED:
        held = key["additionalProperties"]
        candidates = [held, *held.get("anyOf", ())]
    found = (forms.definition(one["$ref"], root) for one in candidates if "$ref" in one)
    return next((one for one in found if "properties" in one), None)


def kind(name: str, key: Schema, place: str, below: Schema | None) -> str:
    if below is None:
        return forms.told(key, {}, null=False)
    if name not in NAMED:
        return f"[keys](#{markdown.anchor(place)})"
    inner = f"{place}.{NAMED[name]}" if place != "gates.targets" else "gates"
    number = ", or a number" if name == "axes" else ""
    return f"{NAMED[name]}: [keys](#{markdown.anchor(inner)}){number}"


def default(key: Schema, required: bool, below: Schema | None) -> str:
    if required:
        return "required"
    if below is not None:
        return ""
    found = key.get("default")
    return markdown.code(forms.yaml(found))
