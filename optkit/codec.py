"""JSON of typed values, and back. The same rules hold for the key of a step and for its entry.

A value is written by its method `to_json`, a pydantic model by `model_dump`, a dataclass by its
fields. The annotation decides how JSON is read: by `from_json`, by `model_validate`, or field by
field.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:  # a worker does not import pydantic
    from pydantic import JsonValue

T = TypeVar("T")
_PLAIN = (bool, int, float, str)


def to_json(value: object) -> JsonValue:
    """JSON of a value. Raises TypeError for a value that has no JSON."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path):
        return str(value)
    if hasattr(value, "to_json"):
        return cast("JsonValue", value.to_json())
    if hasattr(value, "model_dump"):
        return cast("JsonValue", value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def from_json(kind: type[T], data: object) -> T:
    """JSON as a value of the annotation `kind`. A union has at most one member that is read from an
    object or a list. Raises KeyError, TypeError, AttributeError or ValueError for other JSON."""
    return cast(T, read(kind, data))


def read(kind: object, data: Any) -> object:
    """`from_json` of an annotation that is known only at run time."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if data is None else read(_member(arguments, data), data)
    if origin is tuple:
        if arguments[1:] == (...,):
            return tuple(_list(arguments[0], data))
        return tuple(read(each, item) for each, item in zip(arguments, data, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: read(arguments[1], item) for key, item in data.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _list(arguments[0], data)
    # a value of a Literal stays unchanged
    return _instance(kind, data) if isinstance(kind, type) else data


def _instance(kind: type, data: Any) -> object:
    """JSON as an object of a class."""
    if hasattr(kind, "from_json"):
        return kind.from_json(data)
    if hasattr(kind, "model_validate"):
        return kind.model_validate(data)
    if issubclass(kind, Enum | Path):
        return kind(data)
    if is_dataclass(kind):
        known = hints(kind)
        return kind(**{name: read(known[name], item) for name, item in data.items()})
    return kind(*data) if issubclass(kind, tuple) else data  # a NamedTuple


@cache
def hints(kind: type) -> dict[str, object]:
    """The annotations of a class, evaluated."""
    return get_type_hints(kind)


def _list(kind: object, data: Sequence[object]) -> list[object]:
    """A list. Long lists of numbers take the short path."""
    return list(data) if kind in _PLAIN else [read(kind, item) for item in data]


def _member(arguments: tuple[object, ...], data: object) -> object:
    """The member of a union as which JSON other than null is read."""
    members = [member for member in arguments if member is not type(None)]
    if len(members) > 1 and isinstance(data, _PLAIN):
        return type(data)
    classes = [member for member in members if isinstance(member, type) and is_dataclass(member)]
    if len(classes) > 1 and isinstance(data, Mapping):  # the first that has all these fields
        return next(one for one in classes if data.keys() <= hints(one).keys())
    return next((member for member in members if member not in _PLAIN), members[0])
