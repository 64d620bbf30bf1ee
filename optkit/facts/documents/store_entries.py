"""The entries of the store: the objects of `optkit cache ls` and `optkit cache verify`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.documents.record import Number, Record, Rows, said
from optkit.facts.plain_record import Count

CACHE: Final = "optkit.cache/v1"


class EntryRow(Record):
    """The result of a step."""

    key: str
    step: str
    bytes: Count
    used: Annotated[Number, said("When it was used last, in seconds since 1970.")]


class StoreEntries(Record):
    """All entries: `optkit cache ls`."""

    schema_: Literal["optkit.cache/v1"] = Field(alias="schema")
    root: Annotated[str, said("The folder of the store.")]
    entries: Rows[EntryRow]


class StoreCheck(Record):
    """What a comparison of all entries with their digests found: `optkit cache verify`."""

    schema_: Literal["optkit.cache/v1"] = Field(alias="schema")
    sound: Count
    corrupt: Annotated[Rows[str], said("Keys of entries that were moved to the quarantine.")]
