"""Times of kernels on a card: `optkit devices --measure`, and the file that it keeps."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.card_facts import KernelFailure, KernelTime, Library
from optkit.facts.documents.record import NotNegative, Record, Rows, said

CARD: Final = "optkit.card/v1"


class MeasuredCard(Record):
    """Times of kernels on a card. Nothing in it names the machine or the user, except `path`, which
    a shared file does not have."""

    schema_: Literal["optkit.card/v1"] = Field(alias="schema")
    target: str
    device: Annotated[str, said("As the driver reports it.")]
    compute_capability: str
    memory_bytes: int | None = None
    driver: str | None = None
    library: Annotated[Library, said("What ran the kernels.")]
    versions: dict[str, str]
    date: Annotated[str, said("The day of the measurement.")]
    seconds: NotNegative
    marks: Annotated[Rows[str], said("Why the times may not be reliable.")]
    kernels: Rows[KernelTime]
    failed: Annotated[Rows[KernelFailure], said("Kernels that have no time.")]
    path: Annotated[str | None, said("Where the file is kept.")] = None
