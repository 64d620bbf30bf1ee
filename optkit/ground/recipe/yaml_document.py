"""YAML text → plain data and the place of every key, with limits against hostile text.

YAML 1.2 core schema (`no` and `on` are strings, `012` is twelve). Refused are aliases and anchors
(a few hundred bytes of them expand to billions of nodes), tags, directives, several documents,
duplicate or non-string keys, NaN and infinity, more than 1 MiB, and nesting beyond 50. The text is
read as a flat stream of events, so the depth is limited before any function recurses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml import events as ev
from ruamel.yaml.error import MarkedYAMLError, StreamMark, YAMLError

from optkit.facts.errors import RecipeError

MAX_BYTES = 2**20
MAX_DEPTH = 50
MAX_VALUES = 50_000

Path = tuple[str | int, ...]
"""Keys and list positions, from the top: ("gates", "max_drop")."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_A_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass
class Document:
    """Parsed data, and for each key path its place ("recipe.yaml:3:5")."""

    data: object
    marks: dict[Path, str] = field(default_factory=dict)


def parse(content: bytes, name: str) -> Document:
    """Parse one YAML document. Raises RecipeError with `name`:line:column."""
    if len(content) > MAX_BYTES:
        raise RecipeError(
            f"the recipe has {len(content)} bytes; the limit is {MAX_BYTES}",
            where=name,
            hint="keep data out of the recipe: name files instead",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecipeError(
            "not UTF-8 text", where=f"{name}:{line}:1", hint="save the file as UTF-8"
        ) from None
    try:
        return _Reader(name, YAML(typ="safe", pure=True).parse(text)).document()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "not YAML"
        hint = "check the YAML syntax"
        if "\\t" in problem:
            hint += ": indent with spaces, YAML allows no tab there"
        raise RecipeError(problem, where=_where(name, mark), hint=hint) from None
    except YAMLError as error:  # a character that YAML does not allow
        reason = str(error).splitlines()[0]
        raise RecipeError(reason, where=f"{name}:1:1", hint="remove the character") from None


@dataclass
class _Reader:
    """Builds data from events, and records the place of each key."""

    name: str
    events: Iterator[ev.Event]
    marks: dict[Path, str] = field(default_factory=dict)

    def document(self) -> Document:
        next(self.events)  # start of the stream
        start = next(self.events)
        if isinstance(start, ev.StreamEndEvent):
            return Document({}, {(): f"{self.name}:1:1"})
        if isinstance(start, ev.DocumentStartEvent) and (start.version or start.tags):
            raise self.refuse(start, "YAML directives are not allowed")
        first = next(self.events)
        self.marks[()] = _where(self.name, first.start_mark)
        data = self.value(first, ())
        next(self.events)  # end of the document
        extra = next(self.events)
        if not isinstance(extra, ev.StreamEndEvent):
            raise self.refuse(extra, "more than one YAML document")
        return Document(data, self.marks)

    def value(self, event: ev.Event, path: Path) -> object:
        self.check(event, path)
        if isinstance(event, ev.MappingStartEvent):
            return self.mapping(path)
        if isinstance(event, ev.SequenceStartEvent):
            return self.sequence(path)
        assert isinstance(event, ev.ScalarEvent)
        return self.scalar(event)

    def check(self, event: ev.Event, path: Path) -> None:
        # an alias has a position too
        if isinstance(event, ev.NodeEvent) and event.anchor is not None:
            raise self.refuse(event, "YAML anchors and aliases are not allowed")
        if isinstance(event, ev.ScalarEvent | ev.CollectionStartEvent) and event.tag is not None:
            raise self.refuse(event, f"YAML tags are not allowed: {event.tag}")
        if len(path) > MAX_DEPTH:
            raise self.refuse(event, f"nested more than {MAX_DEPTH} deep")
        if len(self.marks) > MAX_VALUES:
            raise self.refuse(event, f"more than {MAX_VALUES} values")

    def mapping(self, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        while not isinstance(event := next(self.events), ev.MappingEndEvent):
            self.check(event, path)
            key = self.scalar(event) if isinstance(event, ev.ScalarEvent) else None
            if not isinstance(key, str):
                raise self.refuse(event, "a key must be a string", "put it in quotes")
            if key in values:
                first = self.marks[(*path, key)]
                raise self.refuse(event, f"key {key!r} occurs twice", f"the first is at {first}")
            self.marks[(*path, key)] = _where(self.name, event.start_mark)
            values[key] = self.value(next(self.events), (*path, key))
        return values

    def sequence(self, path: Path) -> list[object]:
        values: list[object] = []
        while not isinstance(event := next(self.events), ev.SequenceEndEvent):
            here = (*path, len(values))
            self.marks[here] = _where(self.name, event.start_mark)
            values.append(self.value(event, here))
        return values

    def scalar(self, event: ev.ScalarEvent) -> str | int | float | bool | None:
        text: str = event.value
        if not event.implicit[0]:  # a quoted text or a block of text
            return text
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _NOT_A_NUMBER.fullmatch(text):
            raise self.refuse(event, f"{text} is not a finite number")
        if len(text) > 400 and (_INT.fullmatch(text) or _FLOAT.fullmatch(text)):
            raise self.refuse(event, f"the number has {len(text)} digits")
        if _INT.fullmatch(text):
            bases = {"0o": 8, "0x": 16}
            return int(text, bases.get(text[:2], 10))
        if _FLOAT.fullmatch(text):
            return self.finite(event, float(text))
        return text

    def finite(self, event: ev.ScalarEvent, value: float) -> float:
        if value in (float("inf"), float("-inf")):
            raise self.refuse(event, f"{event.value} is not a finite number")
        return value

    def refuse(self, event: ev.Event, problem: str, hint: str | None = None) -> RecipeError:
        hint = hint or "a recipe is plain YAML 1.2: mappings, lists, strings, numbers"
        return RecipeError(problem, where=_where(self.name, event.start_mark), hint=hint)


def _where(name: str, mark: StreamMark | None) -> str:
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
