"""The steps of a build that was not run: the object of `optkit build --dry-run`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from optkit.facts.documents.record import Record, Rows, said
from optkit.facts.documents.translation import Translation
from optkit.facts.engines import BuildSpec
from optkit.facts.listed_steps import Line
from optkit.facts.plain_record import absent

REHEARSAL: Final = "optkit.rehearsal/v1"


class RehearsedPair(Record):
    """The steps of a build for a target in a precision. If a graph is not in the store, its shapes
    are unknown, and whether another tool has quantized it."""

    target: str
    precision: str
    steps: Rows[Line]
    asked: Annotated[Rows[BuildSpec], said("The specification that each compiler would get.")]


class DryRun(Record):
    """The builds that a command would run."""

    schema_: Literal["optkit.rehearsal/v1"] = Field(alias="schema")
    evidence: Literal["predicted"]
    plans: Rows[RehearsedPair]
    translation: Annotated[
        Translation | SkipJsonSchema[None],
        Field(exclude_if=absent, description="Of a command of another tool, if one was given."),
    ] = None
