"""The text form of a protobuf message (protobuf.dev, "Text Format Language"), written from
dataclasses.

The fields of a dataclass have the names and the order of the message's fields. A field that is
None, or an empty tuple or mapping, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields
from typing import Any, ClassVar, Protocol


class Message(Protocol):
    """A dataclass whose fields are Symbol, str, bool, int, Message, or tuples or mappings of
    these."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class Symbol(str):
    """The name of a value of an enumeration: it is written without quotes."""


def text(message: Message, comments: Mapping[str, str]) -> str:
    """The message. `comments`: the name of a field → lines that explain it, written above it."""
    return "".join(f"{line}\n" for line in _lines(message, comments))


def _lines(message: Message, comments: Mapping[str, str]) -> Iterator[str]:
    for field in fields(message):
        value = getattr(message, field.name)
        if value is None or value == () or value == {}:
            continue
        yield from (f"# {line}" for line in comments.get(field.name, "").splitlines())
        yield from _field(field.name, value)


def _field(name: str, value: object) -> Iterator[str]:
    match value:
        case str() | bool() | int():
            yield f"{name}: {_scalar(value)}"
        case tuple() if isinstance(value[0], str | int):
            yield f"{name}: [ {', '.join(map(_scalar, value))} ]"
        case tuple():
            for item in value:
                yield from _field(name, item)
        case Mapping():
            for key, item in value.items():
                yield from _block(name, [*_field("key", key), *_field("value", item)])
        case _:
            yield from _block(name, _lines(value, {}))  # type: ignore[arg-type]


def _block(name: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"{name} {{"
    yield from (f"  {line}" for line in lines)
    yield "}"


def _scalar(value: str | bool | int) -> str:
    if isinstance(value, Symbol):
        return value
    if isinstance(value, str):
        plain = (
            chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in value.encode()
        )
        return f'"{"".join(plain)}"'
    return str(value).lower()
