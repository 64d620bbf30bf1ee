"""`optkit schema`: the JSON schemas of what optkit prints and reads."""

from __future__ import annotations

from optkit.facts import documents
from optkit.facts.errors import unknown_name
from optkit.ground.recipe.json_schema import json_schema
from optkit.verbs.cli import command_output

_RECIPE = "recipe"


def names() -> tuple[str, ...]:
    """The names of all schemas."""
    return (_RECIPE, *documents.NAMES)


def schema(name: str | None) -> None:
    if name is None:
        command_output.put("\n".join(names()))
    elif name == _RECIPE:
        command_output.put_json(json_schema())
    elif name in documents.NAMES:
        command_output.put_json(documents.schema(name))
    else:
        raise unknown_name("schema", name, names())
