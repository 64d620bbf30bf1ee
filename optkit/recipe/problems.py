"""What pydantic found wrong with a recipe, as an error that names the place and the nearest key."""

from __future__ import annotations

import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from optkit.errors import RecipeError, nearest
from optkit.recipe.origin import HINT, KeyPath, Origin, dotted


def refusal(error: ValidationError, origin: Origin, root: type[BaseModel]) -> RecipeError:
    """The first problem; an unknown key before all others, for it is often why one is missing."""
    problems = error.errors()
    problem = min(problems, key=lambda p: p["type"] != "extra_forbidden")
    path = _existing(problem["loc"], origin.data)
    kind, value = problem["type"], problem["input"]
    hint = HINT
    if kind == "extra_forbidden":
        known = _keys(path[:-1], root)
        close = nearest(str(path[-1]), known)
        hint = f"did you mean {' or '.join(close)}?" if close else f"keys here: {', '.join(known)}"
        text = "unknown key"
    elif kind == "missing":
        text = f"key {problem['loc'][-1]!r} is missing"
    elif kind == "literal_error":
        known = re.findall(r"'(.*?)'", problem["ctx"]["expected"])
        close = nearest(str(value), known)
        hint = f"did you mean {close[0]}? known: {', '.join(known)}" if close else hint
        text = f"{value!r} is not one of {problem['ctx']['expected']}"
    elif kind == "value_error":
        text = str(problem["ctx"]["error"])
        hint = "give min, opt and max, min ≤ opt ≤ max" if path[:1] == ("axes",) else hint
    else:
        text = f"{problem['msg'][0].lower()}{problem['msg'][1:]}, not {repr(value)[:60]}"
    text = f"{dotted(path)}: {text}" if path else text
    if len(problems) > 1:
        text += f" (1 of {len(problems)} problems)"
    return RecipeError(text, where=origin.where(path), hint=hint)


def _existing(location: tuple[str | int, ...], data: Any) -> KeyPath:
    """The part of a pydantic location that is in the data (it also names union members)."""
    path: list[str | int] = []
    for part in location:
        inside = part in data if isinstance(data, dict) else False
        inside = inside or (isinstance(data, list | tuple) and isinstance(part, int))
        if not inside:
            break
        path.append(part)
        data = data[part]
    return tuple(path)


def _keys(path: KeyPath, root: type[BaseModel]) -> list[str]:
    """The keys a section may have; names of inputs and axes on the way are passed over."""
    here = root
    for part in path:
        field = here.model_fields.get(str(part))
        here = (_model_in(field.annotation) if field else None) or here
    return sorted(here.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a)) is not None), None)
