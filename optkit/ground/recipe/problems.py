"""The problems of a recipe, as one error that names their places and the nearest keys."""

from __future__ import annotations

import re
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from optkit.facts.errors import RecipeError, nearest
from optkit.ground.recipe.origin import HINT, KeyPath, Origin, dotted

_FORMS = {
    "int": "write a whole number, e.g. 256",
    "float": "write a number, e.g. 0.5",
    "bool": "write true or false",
    "string": "write a text",
    "dict": "write keys and values, e.g. {path: model.onnx}",
    "model": "write keys and values, e.g. {path: model.onnx}",
    "list": "write a list, e.g. [1, 8]",
    "tuple": "write a list, e.g. [1, 8]",
    "greater_than": "write a larger number",
    "less_than": "write a smaller number",
}
"""How a problem of pydantic's begins → what to write."""


_MOST = 8  # problems that are listed behind the first


def refusal(error: ValidationError, origin: Origin, root: type[BaseModel]) -> RecipeError:
    """The problems that pydantic reports: the first one with its hint, and the others as lines
    below it. Unknown keys come first, because one is often the reason why another is missing."""
    found = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    (where, text, hint), *others = (_told(problem, origin, root) for problem in found)
    lines = [f"also wrong: {place}: {what}" for place, what, _ in others[:_MOST]]
    if len(others) > _MOST:
        lines.append(f"and {len(others) - _MOST} more")
    return RecipeError(text, where=where, hint="\n".join([hint, *lines]))


def _told(
    problem: ErrorDetails, origin: Origin, root: type[BaseModel]
) -> tuple[str | None, str, str]:
    """Where one problem is, what is wrong, and what to do."""
    path = _existing(problem["loc"], origin.data)
    hint = HINT
    match problem:
        case {"type": "extra_forbidden"}:
            known = _keys(path[:-1], root)
            close = nearest(str(path[-1]), known)
            hint = f"keys here: {', '.join(known)}"
            hint = f"did you mean {' or '.join(close)}?" if close else hint
            text = "unknown key"
        case {"type": "missing", "loc": (*_, key)}:
            text = f"key {key!r} is missing"
        case {"type": "literal_error", "ctx": {"expected": expected}, "input": value}:
            known = re.findall(r"'(.*?)'", expected)
            close = nearest(str(value), known)
            hint = f"did you mean {close[0]}? known: {', '.join(known)}" if close else hint
            text = f"{value!r} is not one of {expected}"
        case {"type": "value_error", "ctx": {"error": reason}}:
            text = str(reason)
            hint = "give min, opt and max, min ≤ opt ≤ max" if path[:1] == ("axes",) else hint
            hint = "remove all but one of these keys" if "; it has" in text else hint
        case {"msg": message, "input": value, "type": kind}:
            text = f"{message[0].lower()}{message[1:]}, not {repr(value)[:60]}"
            hint = next((form for name, form in _FORMS.items() if kind.startswith(name)), hint)
    return origin.where(path), f"{dotted(path)}: {text}" if path else text, hint


def _existing(location: tuple[str | int, ...], data: object) -> KeyPath:
    """The part of a pydantic location that is in the data. (The location also contains names of
    union members.)"""
    path: list[str | int] = []
    for part in location:
        match data, part:
            case dict(), _ if part in data:
                data = data[part]
            case ((list() | tuple()), int()) if part < len(data):
                data = data[part]
            case _:
                break
        path.append(part)
    return tuple(path)


def _keys(path: KeyPath, root: type[BaseModel]) -> list[str]:
    """The keys that a section may have. Names of inputs and axes on the way are skipped."""
    here = root
    for part in path:
        field = here.model_fields.get(str(part))
        here = (_model_in(field.annotation) if field else None) or here
    return sorted(here.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a)) is not None), None)
