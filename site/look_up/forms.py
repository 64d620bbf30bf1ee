"""Types of JSON schemas in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from look_up import markdown

Schema = Mapping[str, Any]
_PLURAL = {
    "string": "strings",
    "integer": "integers",
    "number": "numbers",
    "boolean": "booleans",
    "object": "objects",
    "array": "arrays",
}
_BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))


def definition(reference: str, root: Schema) -> Schema:
    found = root["$defs"][reference.removeprefix("#/$defs/")]
    assert isinstance(found, dict)
    return found


def told(schema: Schema, names: Mapping[str, str], *, null: bool = True) -> str:
    """A type in words. `names`: reference → what to write for it; `null`: whether null is told."""
    if "$ref" in schema:
        return names.get(schema["$ref"], "any value")
    if "anyOf" in schema or "oneOf" in schema:
        forms = schema.get("anyOf", schema.get("oneOf"))
        assert isinstance(forms, list)
        kinds = [told(form, names) for form in forms if form.get("type") != "null"]
        if null and any(form.get("type") == "null" for form in forms):
            kinds.append("null")
        return " or ".join(dict.fromkeys(kinds))
    if "const" in schema:
        return markdown.code(json.dumps(schema["const"]).strip('"'))
    if "enum" in schema:
        return markdown.either(schema["enum"])
    return _plain(schema, names)


def _plain(schema: Schema, names: Mapping[str, str]) -> str:
    match schema.get("type"):
        case "array":
            return _array(schema, names)
        case "object":
            held = schema.get("additionalProperties")
            kind = told(held, names) if isinstance(held, dict) else "any value"
            return f"object: name → {kind}" if kind != "any value" else "object"
        case "number" | "integer" as kind:
            bounds = [f"{sign} {schema[name]:g}" for name, sign in _BOUNDS if name in schema]
            # that a count is not negative goes without saying
            bounds = [] if bounds == ["≥ 0"] else bounds
            return " ".join([kind, *filter(None, [", ".join(bounds)])])
        case "string" if "%" in schema.get("pattern", ""):
            return "percentage"
        case str() as kind:
            return kind
    return "any value"


def _array(schema: Schema, names: Mapping[str, str]) -> str:
    places = schema.get("prefixItems")
    if places:
        kinds = [_several(told(place, names)) for place in places]
        if len(set(kinds)) > 1:
            return f"array of {', '.join(kinds)}"
        return f"array of {len(kinds)} {kinds[0]}"
    kind = told(schema.get("items", {}), names)
    if kind == "any value":
        return "array"
    two = "2 " if schema.get("minItems") == schema.get("maxItems") == 2 else ""
    return f"array of {two}{_several(kind)}"


def _several(kind: str) -> str:
    """The plural of a type."""
    if kind == "any value":
        return "any values"
    first, _, rest = kind.partition(" ")
    return kind if " or " in kind else f"{_PLURAL.get(first, first)} {rest}".strip()


def yaml(value: object) -> str:
    """A default as a recipe would have it."""
    return "null" if value is None else json.dumps(value, ensure_ascii=False).strip('"')
