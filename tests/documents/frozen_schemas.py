"""JSON schemas as they were frozen, one file per version in `frozen/`, and what may not change.

    python -m tests.documents.frozen_schemas     freezes today's schemas, if readers and writers of
                                                 the frozen ones can go on with them

A document may gain fields; a reader of the frozen version must be able to read it. A recipe of the
frozen version must stay valid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.facts import documents
from optkit.ground.recipe.json_schema import json_schema

FROZEN = Path(__file__).with_name("frozen")
RECIPE = "recipe"
NAMES = (RECIPE, *documents.NAMES)

Schema = Mapping[str, object]
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "minItems", "maxItems", "pattern", "const")
_WORDS = ("title", "description", "default", "$id", "$schema")


def today(name: str) -> Schema:
    return json_schema() if name == RECIPE else documents.schema(name)


def frozen(name: str) -> Schema:
    found = json.loads((FROZEN / f"{name}.v1.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def changes(name: str, schema: Schema) -> list[str]:
    """What a schema of today breaks for the users of the frozen one."""
    if name == RECIPE:
        return list(Reading(frozen(name), schema, may_gain=False).problems())
    return list(Reading(schema, frozen(name), may_gain=True).problems())


@dataclass(frozen=True)
class Reading:
    """Objects valid by the schema `written` are read by a program that knows the schema `read`.
    `may_gain`: it ignores keys that it does not know."""

    written: Schema
    read: Schema
    may_gain: bool

    def problems(self) -> Iterator[str]:
        yield from self._compare(self.written, self.read, "", ())

    def _compare(
        self, written: Schema, read: Schema, at: str, above: tuple[tuple[str, str], ...]
    ) -> Iterator[str]:
        pair = (str(written.get("$ref")), str(read.get("$ref")))
        if pair in above:  # a model that contains itself
            return
        above = (*above, pair) if "$ref" in written and "$ref" in read else above
        forms, known = alternatives(written, self.written), alternatives(read, self.read)
        for form in forms:
            alike = [other for other in known if other.get("type") == form.get("type")] or known
            failures = [list(self._compare_form(form, other, at, above)) for other in alike]
            if all(failures):
                yield from min(failures, key=len)

    def _compare_form(
        self, written: Schema, read: Schema, at: str, above: tuple[tuple[str, str], ...]
    ) -> Iterator[str]:
        type_, known = written.get("type"), read.get("type")
        if known not in (None, type_) and (type_, known) != ("integer", "number"):
            yield f"{at}: {known} became {type_}"
            return
        for bound in _BOUNDS:
            if bound in read and written.get(bound) != read[bound]:
                yield f"{at}: {bound} {read[bound]} became {written.get(bound)}"
        if "enum" in read:
            for value in values(written):
                if value not in values(read):
                    yield f"{at}: the value {value!r} is new"
        for key in ("items", "additionalProperties"):
            inner, other = written.get(key), read.get(key)
            if isinstance(inner, dict) and isinstance(other, dict):
                yield from self._compare(inner, other, f"{at}[]", above)
        yield from self._compare_keys(written, read, at, above)

    def _compare_keys(
        self, written: Schema, read: Schema, at: str, above: tuple[tuple[str, str], ...]
    ) -> Iterator[str]:
        has, knows = properties(written), properties(read)
        required = written.get("required", ())
        assert isinstance(required, (list, tuple))
        for key in has.keys() & knows.keys():
            yield from self._compare(has[key], knows[key], f"{at}.{key}", above)
        needed = read.get("required", ())
        assert isinstance(needed, (list, tuple))
        for key in needed:
            if key not in required:
                yield f"{at}.{key}: is not always there"
        if self.may_gain:
            yield from (f"{at}.{key}: is gone" for key in knows.keys() - has.keys())
        elif read.get("additionalProperties") is False:
            yield from (f"{at}.{key}: is refused" for key in has.keys() - knows.keys())


def alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """The forms that a value may have, each without $ref and anyOf."""
    if "$ref" in schema:
        return alternatives(definition(str(schema["$ref"]), root), root)
    forms = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(forms, list):
        return [form for part in forms for form in alternatives(part, root)]
    return [schema]


def definition(reference: str, root: Schema) -> Schema:
    inner = root["$defs"]
    assert isinstance(inner, dict)
    found = inner[reference.removeprefix("#/$defs/")]
    assert isinstance(found, dict)
    return found


def properties(schema: Schema) -> dict[str, Schema]:
    found = schema.get("properties", {})
    assert isinstance(found, dict)
    return found


def values(schema: Schema) -> list[object]:
    found = schema.get("enum", [schema["const"]] if "const" in schema else [])
    assert isinstance(found, list)
    return found


def without_words(part: object) -> object:
    """Without what only people read."""
    if isinstance(part, list):
        return [without_words(item) for item in part]
    if not isinstance(part, dict):
        return part
    kept = {}
    for key, value in part.items():
        if key in ("properties", "$defs"):  # its keys are names
            kept[key] = {name: without_words(inner) for name, inner in value.items()}
        elif key not in _WORDS:
            kept[key] = without_words(value)
    return kept


def main() -> None:
    FROZEN.mkdir(exist_ok=True)
    for name in NAMES:
        file = FROZEN / f"{name}.v1.json"
        broken = changes(name, today(name)) if file.exists() else []
        if broken:
            raise SystemExit(f"{name}: {'; '.join(broken)}")
        text = json.dumps(without_words(today(name)), sort_keys=True, separators=(",", ":"))
        file.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
