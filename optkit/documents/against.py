"""An artifact timed beside another one in one run (`optkit bench --against`)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.documents.measured import DifferenceFigures, LatencyFigures, Outcome
from optkit.documents.record import AtLeastOne, Number, Object, Record, Rows, said

AGAINST: Final = "optkit.against/v1"


class AgainstRow(Record):
    """Both at one batch size."""

    batch: AtLeastOne
    latency: LatencyFigures
    against_latency: LatencyFigures
    slowdown: Annotated[
        DifferenceFigures,
        said("How much longer the artifact takes, as a share of the other's latency."),
    ]
    outcome: Outcome | None = None
    reason: str | None = None
    marks: Rows[str]


class Against(Record):
    """An artifact timed beside another one in one run (optkit bench --against)."""

    schema_: Literal["optkit.against/v1"] = Field(alias="schema")
    status: Literal["ok", "gate_failed"]
    artifact: str
    against: str
    target: str
    max_slowdown: Annotated[Number | None, said("A share; null: nothing is judged.")] = None
    verdict: Annotated[Outcome | None, said("The worst of all rows.")] = None
    rows: Annotated[Rows[AgainstRow], Field(min_length=1)]
    conditions: Annotated[Object, said("The host meanwhile.")]
