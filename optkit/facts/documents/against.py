"""Two artifacts that were timed in one run (`optkit bench --against`)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.documents.record import Number, Object, Record, Rows, said
from optkit.facts.measurement import Difference, Latency, Outcome
from optkit.facts.plain_record import AtLeastOne

AGAINST: Final = "optkit.against/v1"


class AgainstRow(Record):
    """Both artifacts at one batch size."""

    batch: AtLeastOne
    latency: Latency
    against_latency: Latency
    slowdown: Annotated[
        Difference, said("The extra time of the artifact, as a share of the other's latency.")
    ]
    outcome: Outcome | None = None
    reason: str | None = None
    marks: Rows[str]


class Against(Record):
    """Two artifacts that were timed in one run."""

    schema_: Literal["optkit.against/v1"] = Field(alias="schema")
    status: Literal["ok", "gate_failed"]
    artifact: str
    against: str
    target: str
    max_slowdown: Annotated[Number | None, said("A share; null if there is no limit.")] = None
    verdict: Annotated[Outcome | None, said("The worst verdict of all rows.")] = None
    rows: Annotated[Rows[AgainstRow], Field(min_length=1)]
    conditions: Annotated[Object, said("The state of the host during the run.")]
