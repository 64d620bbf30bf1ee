"""docs/reference/json.md: every object that a command prints with --json, and every JSON file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from look_up import forms, markdown
from optkit.facts import documents
from optkit.facts.documents.common_texts import COMMON
from optkit.facts.documents.schema_texts import ClosedSchema, DescribedSchema
from optkit.ground.artifact.manifest import SCHEMA, Manifest

PRINTED = {
    "result": "`optkit build` of one target and precision, `optkit finish`; `result` in "
    "`report.json` and `manifest.json`",
    "results": "`optkit build` of several targets or precisions",
    "report": "the file `report.json` in an artifact",
    "fleet": "the file `fleet.json` in the folder of a fleet",
    "plan": "`optkit plan`",
    "serving": "`optkit plan --serve`",
    "tune": "`optkit tune`; the file `tune.json` of the search",
    "diff": "`optkit diff`",
    "explain": "`optkit explain`",
    "against": "`optkit bench --against`",
    "package": "`optkit package`",
    "signature": "`optkit sign`, `optkit verify`",
    "attestation": "`optkit attest`",
    "quantized-graph": "`optkit doctor MODEL`",
    "bench": "`optkit bench`",
    "eval": "`optkit eval`",
    "export": "`optkit export`",
    "fuse": "`optkit fuse`",
    "quantize": "`optkit quantize`",
    "compile": "`optkit compile`",
    "error": "any command that fails before it has another object",
    "targets": "`optkit targets`",
    "devices": "`optkit devices`, `optkit targets NAME`",
    "doctor": "`optkit doctor`",
    "inspect": "`optkit inspect`",
    "cache": "`optkit cache ls`, `optkit cache verify`",
    "rehearsal": "`optkit build --dry-run`",
    "card": "`optkit devices --measure`; the file that it keeps",
    "monitor": "`optkit monitor`",
    "generate": "`optkit generate`",
}
"""Document → the commands that print it, and the files that hold it."""

Schema = Mapping[str, Any]
_INLINE = re.compile(
    r"(^|__)(BothSides|Interval$|JsonValue$)"
)  # too small for a table of their own


def page() -> str:
    book = Book.read()
    names = sorted(documents.NAMES, key=list(PRINTED).index)
    return markdown.page(
        "# JSON",
        "Every object that a command prints with `--json`, and every JSON file that optkit writes. "
        "`optkit schema NAME` prints the JSON schema of an object. "
        "[Artifacts](artifact.md) explains the result. "
        + markdown.made_from("the models of these objects"),
        "A key that does not apply is null; *may be absent*: it is left out then. Within a "
        "version, an object may gain keys and loses none.",
        markdown.table(["object", "from", "what it is"], overview(book, names)),
        *(part for name in names for part in book.document(name)),
        *manifest(),
        "## Parts of several objects",
        *(part for name in book.shared() for part in book.part(name)),
    )


def overview(book: Book, names: list[str]) -> Iterator[tuple[str, str, str]]:
    """One row for each object."""
    for name in names:
        title = f"optkit.{name}/v1"
        told = " ".join(dict.fromkeys(map(sentence, book.forms(name))))
        yield f"[`{title}`](#{markdown.anchor(title)})", PRINTED[name], told
    told = sentence({"description": str(Manifest.__doc__)})
    yield (
        f"[`{SCHEMA}`](#{markdown.anchor(SCHEMA)})",
        "the file `manifest.json` in an artifact",
        told,
    )


@dataclass(frozen=True)
class Book:
    """All documents, in one schema. `users`: part → the documents that contain it."""

    tops: Mapping[str, Schema]
    parts: Mapping[str, Schema]
    users: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Book:
        adapters = [(name, "serialization", documents.model(name)) for name in documents.NAMES]
        tops, whole = TypeAdapter.json_schemas(adapters, schema_generator=ClosedSchema)
        book = cls({name: schema for (name, _), schema in tops.items()}, whole["$defs"])
        for name in documents.NAMES:
            for part in book.reached(name):
                book.users.setdefault(part, []).append(name)
        return book

    def forms(self, name: str) -> list[Schema]:
        """The objects of a document: two if two commands print objects of one name."""
        top = self.tops[name]
        found = top.get("anyOf", [top])
        assert isinstance(found, list)
        return [self.parts[part_of(one["$ref"])] if "$ref" in one else one for one in found]

    def reached(self, name: str) -> list[str]:
        """The parts in a document, each once; documents in it are none."""
        found: dict[str, None] = {}
        waiting = [part for form in self.forms(name) for part in references(form["properties"])]
        while waiting:
            part = waiting.pop(0)
            if part not in found and part not in self.whole:
                found[part] = None
                waiting += references(self.parts[part])
        return [
            part
            for part in found
            if "properties" in self.parts[part] or "enum" in self.parts[part]
            if not _INLINE.search(part)
        ]

    @cached_property
    def whole(self) -> Mapping[str, str]:
        """Part that is a document of its own → the document."""
        return {
            part_of(form["$ref"]): name
            for name, top in self.tops.items()
            for form in top.get("anyOf", [top])
            if "$ref" in form
        }

    def shared(self) -> list[str]:
        return sorted(
            (part for part, users in self.users.items() if len(users) > 1), key=self.title
        )

    def document(self, name: str) -> Iterator[str]:
        """The keys of a document, and below them those of its own parts."""
        yield f"## optkit.{name}/v1"
        origin = PRINTED[name]
        yield f"{origin[0].upper()}{origin[1:]}."
        for form in self.forms(name):
            yield about(form)
            yield self.keys(form)
        for part in self.reached(name):
            if self.users[part] == [name]:
                yield from self.part(part)

    def part(self, name: str) -> Iterator[str]:
        schema = self.parts[name]
        yield f"### {self.title(name)}"
        yield about(schema)
        if "enum" in schema:
            yield f"One of {markdown.either(schema['enum'])}."
        else:
            yield self.keys(schema)

    def keys(self, schema: Schema) -> str:
        rows = []
        needed = schema.get("required", ())
        for name, key in schema["properties"].items():
            absent = "" if name in needed else ", may be absent"
            rows.append((markdown.code(name), forms.told(key, self.links) + absent, self.text(key)))
        return markdown.table(["key", "type", "what it is"], rows)

    def text(self, key: Schema) -> str:
        """The description of a key; if it has none, that of the part that it holds."""
        if "description" in key:
            return str(key["description"])
        inner = (self.parts[part] for part in references(key))
        return next((sentence(part) for part in inner if "description" in part), "")

    @cached_property
    def links(self) -> Mapping[str, str]:
        """Reference → what a type says for it."""
        found = {f"#/$defs/{name}": self.link(name) for name in self.parts}
        for name, part in self.parts.items():
            if "BothSides" in name:
                held = forms.told(part["properties"]["engine"], found)
                found[f"#/$defs/{name}"] = f"object: `engine` and `baseline`, each {held}"
        return found

    def link(self, name: str) -> str:
        if name in self.whole:
            heading = f"optkit.{self.whole[name]}/v1"
            return f"[{self.whole[name]}](#{markdown.anchor(heading)})"
        if name in self.users:
            return f"[{self.title(name)}](#{markdown.anchor(self.title(name))})"
        return forms.told(self.parts[name], {})

    def title(self, name: str) -> str:
        """The name of a part, with its document if another part has the same name."""
        last = name.split("__")[-1]
        alike = [one for one in self.users if one.split("__")[-1] == last]
        if len(alike) == 1:
            return last
        module = name.split("__")[-2] if "__" in name else self.users[name][0]
        return f"{last} ({module})"


def references(schema: object) -> list[str]:
    """The parts to which a schema refers directly."""
    if isinstance(schema, list):
        return [part for one in schema for part in references(one)]
    if not isinstance(schema, dict):
        return []
    own = [part_of(schema["$ref"])] if isinstance(schema.get("$ref"), str) else []
    return own + [part for value in schema.values() for part in references(value)]


def part_of(reference: str) -> str:
    return reference.removeprefix("#/$defs/")


def sentence(schema: Schema) -> str:
    """The first sentence of a description."""
    return re.split(r"(?<=[^.]\.) (?=[A-Z`])", about(schema))[0]


def manifest() -> Iterator[str]:
    """The keys of manifest.json, which has no model of pydantic."""
    schema = TypeAdapter(Manifest).json_schema(
        mode="serialization", schema_generator=DescribedSchema
    )
    held = {
        name: f"[{name} of the manifest](#{markdown.anchor(f'{name} of the manifest')})"
        for name in schema["$defs"]
    }
    links = {f"#/$defs/{name}": link for name, link in held.items()}
    yield f"## {SCHEMA}"
    yield "The file `manifest.json` in an artifact. " + about(schema)
    yield manifest_keys({**ALWAYS, **schema["properties"]}, links)
    for name in held:
        part = schema["$defs"][name]
        yield f"### {name} of the manifest"
        yield about(part)
        yield manifest_keys(part["properties"], links)


ALWAYS: Mapping[str, Schema] = {
    "schema": {"const": SCHEMA, "description": COMMON["schema"]},
    "check": {"type": "string", "description": "The digest of all other keys."},
    "evidence": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "The evidence of each group of figures in the result.",
    },
}
"""The keys that a manifest has besides its fields."""


def manifest_keys(keys: Mapping[str, Schema], links: Mapping[str, str]) -> str:
    return markdown.table(
        ["key", "type", "what it is"],
        [
            (markdown.code(name), forms.told(key, links), key.get("description") or COMMON[name])
            for name, key in keys.items()
        ],
    )


def about(schema: Schema) -> str:
    return " ".join(schema.get("description", "").split())
