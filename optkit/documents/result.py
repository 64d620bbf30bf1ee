"""The result object: what one build came to, as `--json` prints it and scripts read it.

Raw samples stay out: they are in the report.
"""

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
from optkit.documents.record import AtLeastOne, Count, Number, Record, Rows, absent, said
from optkit.evidence import Evidence

RESULT: Final = "optkit.result/v1"
RESULTS: Final = "optkit.results/v1"

Status = Literal["ok", "gate_failed", "pending", "impossible", "error"]


class Failure(Record):
    """An error, as every command tells it."""

    code: str
    message: str
    where: str | None = None
    hint: str | None = None


class LandingCounts(Record):
    """Planned against real, in nodes."""

    planned: Count
    landed: Count
    by_dtype: dict[str, Count]
    unknown: Annotated[
        Count,
        said("Planned nodes of which the compiler does not tell what they multiply in."),
    ] = 0  # the first artifacts do not have it


class EngineFacts(Record):
    """A compiled engine, or the backend whose engine is pending."""

    backend: str
    evidence: Evidence
    bytes: Count | None = None
    layers: Annotated[Count | None, said("Fused layers.")] = None
    bytes_moved: Annotated[
        Count | None, said("Activation bytes between fused layers, at `batch`.")
    ] = None
    batch: Count | None = None
    note: str | None = None
    landing: LandingCounts | None = None


class PrecisionFigures(Record):
    """One precision of the model: its engine and what is known of it."""

    precision: str
    engine: EngineFacts | None = None
    latency: LatencyFigures | None = None
    accuracy: ScoreFigures | None = None


class PendingEngine(Record):
    """What is to be finished on another host."""

    backend: str
    finish: Annotated[str, said("The command that finishes it on the right host.")]


class EngineSize(Record):
    """Bytes of the engine beside the baseline's."""

    bytes: Count
    baseline_bytes: Count | None = None
    evidence: Evidence


class DataFinding(Record):
    """What is suspicious about calibration data."""

    kind: str
    input: Annotated[str | None, said("Null: the whole set.")] = None
    what: str
    measured: Number
    expected: Number | None = None
    hint: str


class CalibrationCheck(Record):
    """What the check of the calibration data says."""

    verdict: Literal["clean", "suspect"]
    samples: AtLeastOne
    compared: Annotated[bool, said("Whether there was evaluation data to compare it with.")]
    findings: Rows[DataFinding]


class Result(Record):
    """What one build came to. Every key is present; what does not apply is null."""

    schema_: Literal["optkit.result/v1"] = Field(alias="schema")
    status: Status
    error: Failure | None = None
    artifact: Annotated[str | None, said("Folder of the artifact.")] = None
    model: str | None = None
    target: str | None = None
    precision: str | None = None
    engine: EngineFacts | None = None
    pending: Rows[PendingEngine]
    latency: LatencyFigures | None = None
    accuracy: ScoreFigures | None = None
    fidelity: FidelityFigures | None = None
    baseline: PrecisionFigures | None = None
    references: Rows[PrecisionFigures]
    speedup: Annotated[
        DifferenceFigures | None,
        said("Baseline latency / latency at the same batch."),
    ] = None
    drop: Annotated[
        DifferenceFigures | None,
        said("Fraction; positive is worse. Relative where the metric is no proportion."),
    ] = None
    size: EngineSize | None = None
    gate: GateVerdict | None = None
    recommendation: Annotated[Recommendation | SkipJsonSchema[None], Field(exclude_if=absent)] = (
        None
    )
    calibration: CalibrationCheck | None = None
    seconds: dict[str, Number]
    cache_hits: Count
    parts: Annotated[
        dict[str, Result] | None,
        said("Results by part, of a model that is several graphs (encoder and decoder)."),
    ] = None


class Results(Record):
    """Several targets or precisions."""

    schema_: Literal["optkit.results/v1"] = Field(alias="schema")
    results: Rows[Result]
    fleet: Annotated[
        str | None,
        said("The folder with fleet.json and the comparison; null where nothing was tried."),
    ] = None
