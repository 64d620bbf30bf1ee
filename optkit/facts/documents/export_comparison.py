"""Where an exported graph was compared with its model. Workers import this module, so it has no
pydantic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optkit.facts.plain_record import Count, Number, PlainRecord


@dataclass(frozen=True)
class ExportCheck(PlainRecord):
    """One comparison of the exported graph with its model."""

    sizes: dict[str, Count]
    """Axis → size."""
    values: Literal["samples", "random"]
    """Whether the inputs were samples of the user, at these sizes, or random."""
    masks: str | None
    """How masks were filled; null: as in the samples, or at random."""
    errors: dict[str, Number | None]
    """Output → its largest difference; of integers, the share that differs; null where one side is
    not finite."""
    notes: tuple[str, ...]
    """Differences that are no errors of the export, and why."""


@dataclass(frozen=True)
class ExportLeftOut(PlainRecord):
    """A comparison that was not made."""

    sizes: dict[str, Count]
    """Axis → size."""
    reason: str
