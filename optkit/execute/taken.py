"""A step of a command, as reports and rehearsals list it."""

from __future__ import annotations

from dataclasses import dataclass, field

from optkit.plain_record import BESIDE, NotNegative, PlainRecord


@dataclass(frozen=True)
class NamedStep(PlainRecord):
    """The step, and what it does in this command, in words."""

    step: str
    label: str


@dataclass(frozen=True)
class StepTaken(NamedStep):
    """One step of the build: its key in the store, and whether its result was there before.
    `ran_code`: it has run the user's code, and nothing is declared of what the code depends on."""

    key: str
    hit: bool
    seconds: NotNegative
    ran_code: bool = field(default=False, metadata=BESIDE)
