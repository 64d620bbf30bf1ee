"""What to do, in one sentence, as results, fleets, plans and searches hold it."""

from __future__ import annotations

from typing import Annotated, Literal

from optkit.documents.record import Record, Rows, said
from optkit.evidence import Evidence

Ship = Literal["candidate", "baseline", "none", "unknown"]


class Recommendation(Record):
    """Whether the candidate is worth shipping. The gate says whether limits hold; this is another
    question."""

    ship: Annotated[
        Ship, said("none: a limit is broken; unknown: measure or check first, as the sentence says")
    ]
    sentence: Annotated[str, said("What to do, with the figures that decide it.")]
    evidence: Annotated[Rows[Evidence], said("Of these figures, each once.")]
    conditions: Annotated[Rows[str], said("What speaks against the figures; empty: nothing.")]
