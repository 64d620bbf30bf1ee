"""The recommendation of a result, a fleet, a plan or a search, in one sentence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from optkit.facts.documents.record import Record, Rows, said
from optkit.facts.evidence import Evidence
from optkit.facts.plain_record import absent

Ship = Literal["candidate", "baseline", "none", "unknown"]
Decision = Literal["candidate", "likely", "baseline", "none", "unknown"]


class Recommendation(Record):
    """Whether the candidate is worth shipping. The gate answers another question: whether the
    limits hold."""

    ship: Annotated[
        Ship, said("none: a limit is broken; unknown: measure or check first, as the sentence says")
    ]
    likely: Annotated[
        Literal[True] | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="Only where a gain is predicted: measure it on the target before you ship "
            "the candidate.",
        ),
    ] = None
    sentence: Annotated[str, said("What to do, with the figures that decide it.")]
    evidence: Annotated[Rows[Evidence], said("The evidence of these figures, each once.")]
    conditions: Annotated[
        Rows[str], said("The conditions that make the figures uncertain; may be empty.")
    ]

    @property
    def decision(self) -> Decision:
        """`ship`, with "likely" where a gain is predicted and not measured."""
        return "likely" if self.likely else self.ship
