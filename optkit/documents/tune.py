"""What one search came to: tune.json."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from optkit.documents.measured import (
    DifferenceFigures,
    FidelityFigures,
    GateVerdict,
    LatencyFigures,
    ScoreFigures,
)
from optkit.documents.recommendation import Recommendation
from optkit.documents.record import (
    AtLeastOne,
    Count,
    Number,
    Record,
    Rows,
    Share,
    absent,
    said,
)
from optkit.documents.result import Failure, Result
from optkit.evidence import Evidence

TUNE: Final = "optkit.tune/v1"


class SearchBudget(Record):
    """The limits of the search; null: no such limit."""

    max_drop: Annotated[Number | None, said("Fraction of the metric.")] = None
    min_sqnr: Annotated[Number | None, said("dB.")] = None
    max_latency_ms: Number | None = None
    max_bytes: int | None = None


class SearchFacts(Record):
    """How the search went."""

    seed: int
    trials: Count
    limit: AtLeastOne
    failed: Count
    converged: Annotated[bool, said("Nothing promising was left to try.")]
    parallel: Annotated[
        AtLeastOne,
        said("Trials at a time. Another number gives another sequence of trials."),
    ]


class FrontEvidence(Record):
    """How the figures of the front are known."""

    sqnr_db: Evidence
    latency_ms: Evidence
    bytes: Evidence


class FreshFigures(Record):
    """On samples that the search has not seen."""

    accuracy: ScoreFigures | None = None
    drop: DifferenceFigures | None = None
    fidelity: FidelityFigures | None = None
    latency: LatencyFigures | None = None
    speedup: DifferenceFigures | None = None
    gate: GateVerdict | None = None


class FrontPoint(Record):
    """A trial that no other beats in SQNR, latency and size at once."""

    precision: str
    quantized: Annotated[Count, said("Layers that are quantized.")]
    nodes: dict[str, str]
    two_term: Rows[str]
    placement: str
    sqnr_db: Annotated[Number | None, said("Null where the outputs are equal.")] = None
    divergence: Number | None = None
    latency_ms: Number
    bytes: Count
    bytes_moved: int | None = None
    fused_layers: int | None = None
    landed: int | None = None
    planned: int | None = None
    chosen: bool
    fresh: FreshFigures | None = None


class RankedLayers(Record):
    """A group of layers: what it costs when it is quantized alone, and what became of it."""

    layers: Annotated[Rows[str], Field(min_length=1)]
    precision: str
    sqnr_db: Annotated[Number | None, said("Of the outputs with these layers alone quantized.")] = (
        None
    )
    divergence: Annotated[Number | None, said("KL of the outputs' softmax, nats.")] = None
    share: Share
    chosen: str


class Tune(Record):
    """What one search came to. Every key is present; what does not apply is null."""

    schema_: Literal["optkit.tune/v1"] = Field(alias="schema")
    status: Literal["ok", "gate_failed", "impossible", "error"]
    error: Failure | None = None
    model: str | None = None
    target: str | None = None
    precisions: Rows[str]
    budget: SearchBudget | None = None
    quantized: Annotated[bool | None, said("Whether the winner quantizes anything.")] = None
    reason: Annotated[str | None, said("Why the budget is not kept, or nothing is quantized.")] = (
        None
    )
    artifact: str | None = None
    digest: Annotated[str | None, said("The artifact's manifest.digest.")] = None
    recipe: Annotated[
        str | None, said("The file that builds the artifact again, with `command`.")
    ] = None
    command: str | None = None
    search: SearchFacts | None = None
    evidence: FrontEvidence | None = None
    front: Annotated[
        Rows[FrontPoint],
        said("What no other trial beats in SQNR, latency and size at once; fastest first."),
    ]
    layers: Annotated[
        Rows[RankedLayers],
        said("Groups of layers, what costs most accuracy first."),
    ]
    excluded: Annotated[dict[str, str], said("Layers that no precision can have, and why.")]
    result: Annotated[Result | None, said("That of the artifact's build.")] = None
    recommendation: Annotated[Recommendation | SkipJsonSchema[None], Field(exclude_if=absent)] = (
        None
    )
