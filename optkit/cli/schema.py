"""`optkit schema`: the JSON schemas of what optkit prints and reads."""

from __future__ import annotations

from optkit import documents
from optkit.cli import terminal
from optkit.errors import unknown_name
from optkit.recipe.json_schema import json_schema

_RECIPE = "recipe"


def names() -> tuple[str, ...]:
    """The names of all schemas."""
    return (_RECIPE, *documents.NAMES)


def schema(name: str | None) -> None:
    if name is None:
        terminal.put("\n".join(names()))
    elif name == _RECIPE:
        terminal.put_json(json_schema())
    elif name in documents.NAMES:
        terminal.put_json(documents.schema(name))
    else:
        raise unknown_name("schema", name, names())
