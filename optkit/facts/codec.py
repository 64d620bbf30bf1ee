"""JSON of typed values, and back. The same rules hold for the key of a step and for its entry.

A value is written by its method `to_json`, a pydantic model by `model_dump`, a dataclass by its
fields. The annotation decides how JSON is read: by `from_json`, by `model_validate`, or field by
field. A field that a dataclass gains later is declared by `later(default)`, so that the keys of
existing entries, which do not have it, stay the same.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:  # a worker does not import pydantic
    from pydantic import JsonValue

T = TypeVar("T")
_PLAIN = (bool, int, float, str)


def later(default: object) -> Any:
    """A field of a dataclass that is left out of the JSON if it has its default value."""
    return field(default=default, metadata={"later": True})


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
    if isinstance(value, frozenset):
        return [to_json(item) for item in sorted(value)]
    if is_dataclass(value):
        return {name: to_json(held) for name, held in _written(value)}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _written(value: Any) -> Iterator[tuple[str, object]]:
    """The fields of a dataclass, without the later ones that have their default value."""
    for each in fields(value):
        held = getattr(value, each.name)
        if "later" not in each.metadata or held != each.default:
            yield each.name, held


def from_json(kind: type[T], data: object) -> T:
    """JSON as a value of the annotation `kind`. A union has at most one member that is read from an
    object or a list. Raises KeyError, TypeError, AttributeError or ValueError for other JSON."""
    return cast(T, read(kind, data))


def read(kind: object, data: Any) -> object:
    """`from_json` of an annotation that is known only at run time."""
    return _reader(kind)(data)


_Reader = Callable[[Any], object]


@cache
def _reader(kind: object) -> _Reader:
    """The function that reads JSON as an annotation. An annotation is analysed once."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple:
        if arguments[1:] == (...,):
            items = _list(arguments[0])
            return lambda data: tuple(items(data))
        each = [_reader(argument) for argument in arguments]
        return lambda data: tuple(one(item) for one, item in zip(each, data, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, value = map(_reader, arguments)
        return lambda data: {key(name): value(item) for name, item in data.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence | frozenset):
        listed = _list(arguments[0])
        return (lambda data: frozenset(listed(data))) if origin is frozenset else listed
    return _class(kind) if isinstance(kind, type) else _unchanged  # Any, or a Literal


def _unchanged(data: Any) -> object:
    return data


def _class(kind: type) -> _Reader:
    """JSON as an object of a class."""
    for method in ("from_json", "model_validate"):
        if hasattr(kind, method):
            return cast(_Reader, getattr(kind, method))
    if issubclass(kind, Enum | Path):
        return kind
    if is_dataclass(kind):

        def from_fields(data: Any) -> object:
            readers = _field_readers(kind)  # not before a value is read: a class may contain itself
            return kind(**{name: readers[name](item) for name, item in data.items()})

        return from_fields
    return (lambda data: kind(*data)) if issubclass(kind, tuple) else _unchanged  # a NamedTuple


@cache
def _field_readers(kind: type) -> dict[str, _Reader]:
    return {name: _reader(annotation) for name, annotation in hints(kind).items()}


@cache
def hints(kind: type) -> dict[str, object]:
    """The annotations of a class, evaluated."""
    return get_type_hints(kind)


def _list(kind: object) -> Callable[[Any], list[object]]:
    """Lists of a kind. Long lists of numbers take the short path."""
    if kind in _PLAIN:
        return list
    reader = _reader(kind)
    return lambda data: [reader(item) for item in data]


def _union(arguments: tuple[object, ...]) -> _Reader:
    """Null, or the member of a union that fits the JSON."""
    members = [member for member in arguments if member is not type(None)]
    classes = [member for member in members if isinstance(member, type) and is_dataclass(member)]
    other = _reader(next((member for member in members if member not in _PLAIN), members[0]))

    def fitting(data: Any) -> object:
        if data is None or (len(members) > 1 and isinstance(data, _PLAIN)):
            return data
        if len(classes) > 1 and isinstance(data, Mapping):  # the first that has all these fields
            return read(next(one for one in classes if data.keys() <= hints(one).keys()), data)
        return other(data)

    return fitting
