"""What works on this machine: the object of `optkit doctor`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.documents.record import Record, Rows, said

DOCTOR: Final = "optkit.doctor/v1"


class LibraryCheck(Record):
    """A library, or something else on which builds depend."""

    what: str
    """What was checked."""
    state: Literal["ok", "missing", "broken"]
    version: str | None = None
    needed: Annotated[bool, said("No build works without it.")]
    note: str
    """Where it is, what it gives, or why it does not work."""


class Installation(Record):
    """Everything on which builds depend."""

    schema_: Literal["optkit.doctor/v1"] = Field(alias="schema")
    checks: Rows[LibraryCheck]
