"""JSON of typed values and back: one rule for what a step's key says and for what its entry holds.

A value is written by its own `to_json`, a pydantic model by `model_dump`, a dataclass by its
fields; an annotation says what JSON is read as, by `from_json`, `model_validate` or the fields.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def to_json(value: Any) -> Any:
    """Raises TypeError for a value that has no JSON."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path):
        return str(value)
    if hasattr(value, "to_json"):
        return value.to_json()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): to_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    if is_dataclass(value):
        return {one.name: to_json(getattr(value, one.name)) for one in fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON")


def from_json(kind: Any, data: Any) -> Any:
    """JSON as a value of the annotation `kind`. A union has at most one member that is read from an
    object or a list. Raises KeyError or TypeError for other JSON."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if data is None else from_json(_member(arguments, data), data)
    if origin is tuple:
        each = arguments[:1] * len(data) if arguments[1:] == (...,) else arguments
        return tuple(from_json(one, row) for one, row in zip(each, data, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: from_json(arguments[1], one) for key, one in data.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [from_json(arguments[0], one) for one in data]
    if origin is Literal or not isinstance(kind, type):
        return data
    if hasattr(kind, "from_json"):
        return kind.from_json(data)
    if hasattr(kind, "model_validate"):
        return kind.model_validate(data)
    if issubclass(kind, Enum | Path):
        return kind(data)
    if is_dataclass(kind):
        known = hints(kind)
        return kind(**{name: from_json(known[name], one) for name, one in data.items()})
    return data


@cache
def hints(kind: type) -> dict[str, Any]:
    """The annotations of a class, evaluated."""
    return get_type_hints(kind)


def _member(arguments: tuple[Any, ...], data: Any) -> Any:
    """The member of a union that JSON which is not null is read as."""
    members = [one for one in arguments if one is not type(None)]
    plain = (bool, int, float, str)
    if len(members) > 1 and isinstance(data, plain):
        return type(data)
    classes = [one for one in members if isinstance(one, type) and is_dataclass(one)]
    if len(classes) > 1:  # the first that has all these fields
        return next(one for one in classes if data.keys() <= hints(one).keys())
    return next((one for one in members if one not in plain), members[0])
