"""A step of a command, as reports and rehearsals list it."""

from __future__ import annotations

from dataclasses import dataclass, field

from optkit.facts.plain_record import BESIDE, NotNegative, PlainRecord


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


@dataclass(frozen=True)
class Line(NamedStep):
    """One step of the plan. `hit`: it does not run. Seconds and bytes are those of the same step
    earlier in this store; None if there are none."""

    hit: bool
    seconds: float | None
    bytes: int | None
