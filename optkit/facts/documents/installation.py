"""What works on this machine: the object of `optkit doctor`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.documents.record import Record, Rows, said

DOCTOR: Final = "optkit.doctor/v1"


class LibraryCheck(Record):
    """A library, or something else on which builds depend."""

    what: str
    state: Literal["ok", "missing", "broken"]
    version: str | None = None
    needed: Annotated[bool, said("No build works without it.")]
    note: str


class Installation(Record):
    """Everything on which builds depend."""

    schema_: Literal["optkit.doctor/v1"] = Field(alias="schema")
    checks: Rows[LibraryCheck]
