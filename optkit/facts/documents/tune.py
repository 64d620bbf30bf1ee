"""The result of a search: tune.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from optkit.facts.documents.measured import GateVerdict
from optkit.facts.documents.recommendation import Recommendation
from optkit.facts.documents.record import Number, Record, Rows, Share, said
from optkit.facts.documents.result import Failure, Result
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Fidelity, Latency, Score
from optkit.facts.plain_record import AtLeastOne, Count, PlainRecord, absent

TUNE: Final = "optkit.tune/v1"


@dataclass(frozen=True)
class SearchBudget(PlainRecord):
    """The limits of the search; null: no such limit."""

    max_drop: Number | None = None
    """As a fraction of the metric."""
    min_sqnr: Number | None = None
    """In dB."""
    max_latency_ms: Number | None = None
    max_bytes: int | None = None


class SearchFacts(Record):
    """The settings of the search, and how it ended."""

    seed: int
    trials: Count
    limit: AtLeastOne
    """The most trials that the search may make."""
    failed: Count
    converged: Annotated[bool, said("The search ended because no promising trial was left.")]
    parallel: Annotated[
        AtLeastOne,
        said("Trials at the same time. Another number gives another sequence of trials."),
    ]


class FrontEvidence(Record):
    """The evidence of the figures of the front."""

    sqnr_db: Evidence
    latency_ms: Evidence
    bytes: Evidence


class FreshFigures(Record):
    """Figures on samples that the search has not used."""

    accuracy: Score | None = None
    drop: Difference | None = None
    fidelity: Fidelity | None = None
    latency: Latency | None = None
    speedup: Difference | None = None
    gate: GateVerdict | None = None


class FrontPoint(Record):
    """A trial that no other beats in SQNR, latency and size at once."""

    precision: str
    quantized: Annotated[Count, said("The number of quantized layers.")]
    nodes: dict[str, str]
    """Node → precision."""
    two_term: Rows[str]
    placement: str
    sqnr_db: Annotated[Number | None, said("Null if the outputs are equal.")] = None
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
    """A group of layers: the noise when only this group is quantized, and its precision in the
    winner."""

    layers: Annotated[Rows[str], Field(min_length=1)]
    precision: str
    sqnr_db: Annotated[
        Number | None, said("At the outputs, if only these layers are quantized.")
    ] = None
    divergence: Annotated[
        Number | None, said("KL divergence of the outputs' softmax, in nats.")
    ] = None
    share: Share
    chosen: str
    """Their precision in the winner."""


class Tune(Record):
    """The result of a search. Every key is present; a value that does not apply is null."""

    schema_: Literal["optkit.tune/v1"] = Field(alias="schema")
    status: Literal["ok", "gate_failed", "impossible", "error"]
    error: Failure | None = None
    model: str | None = None
    target: str | None = None
    precisions: Rows[str]
    budget: SearchBudget | None = None
    quantized: Annotated[bool | None, said("Whether the winner quantizes anything.")] = None
    reason: Annotated[str | None, said("Why the budget is exceeded, or nothing is quantized.")] = (
        None
    )
    artifact: str | None = None
    digest: Annotated[str | None, said("manifest.digest of the artifact.")] = None
    recipe: Annotated[
        str | None, said("The file that builds the artifact again, with `command`.")
    ] = None
    command: str | None = None
    search: SearchFacts | None = None
    evidence: FrontEvidence | None = None
    front: Annotated[
        Rows[FrontPoint],
        said("Trials that no other trial beats in SQNR, latency and size; fastest first."),
    ]
    layers: Annotated[
        Rows[RankedLayers], said("Groups of layers; those that cost the most accuracy first.")
    ]
    excluded: Annotated[
        dict[str, str], said("Layers that no precision can quantize, with the reason.")
    ]
    result: Annotated[Result | None, said("The result of the artifact's build.")] = None
    recommendation: Annotated[Recommendation | SkipJsonSchema[None], Field(exclude_if=absent)] = (
        None
    )
