"""What the fusion rules did. A plain dataclass, because a worker writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from optkit.facts.codec import from_json


@dataclass(frozen=True)
class Rewrite:
    """What a rule did at a node: it was applied, or declined with a reason."""

    rule: str
    node: str
    outcome: Literal["applied", "declined"]
    reason: str

    @property
    def note(self) -> str:
        reason = f", {self.reason}" if self.reason else ""
        return f"{self.rule} {self.node}: {self.outcome}{reason}"


def rewrites(details: Mapping[str, object]) -> tuple[Rewrite, ...]:
    """What rules did, in the order of the log, by the facts of a step; empty of a step without
    rules."""
    log = details.get("log")
    entries = log.get("entries", ()) if isinstance(log, Mapping) else ()
    return from_json(tuple[Rewrite, ...], entries)
