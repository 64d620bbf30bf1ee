"""The result object of one build, which `--json` prints and scripts read.

It does not contain the samples; they are in the report.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from optkit.facts.assignment import QuantizedProducts
from optkit.facts.documents.data_finding import DataFinding
from optkit.facts.documents.measured import GateVerdict
from optkit.facts.documents.recommendation import Recommendation
from optkit.facts.documents.record import Number, Record, Rows, said
from optkit.facts.documents.sizes import DeclaredSizes
from optkit.facts.documents.translation import Translation
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Fidelity, Latency, Score
from optkit.facts.plain_record import AtLeastOne, Count, absent

RESULT: Final = "optkit.result/v1"
RESULTS: Final = "optkit.results/v1"
ERROR: Final = "optkit.error/v1"

Status = Literal["ok", "gate_failed", "pending", "impossible", "error"]


class Failure(Record):
    """An error, in the form that every command prints."""

    code: str
    message: str
    where: str | None = None
    hint: str | None = None


class StepFailure(Failure):
    """An error; of a step that was killed, also how and what it had said."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    verdict: Annotated[str | SkipJsonSchema[None], Field(exclude_if=absent)] = None
    """How the step ended: `crashed`, `timeout`, `oom` or `output`."""
    log: Annotated[str | SkipJsonSchema[None], Field(exclude_if=absent)] = None


class FailedCommand(Record):
    """What a command prints that failed before it had a result."""

    schema_: Literal["optkit.error/v1"] = Field(alias="schema")
    status: Literal["error"]
    error: StepFailure


class LandingCounts(Record):
    """Planned nodes and landed nodes, in ONNX nodes."""

    planned: Count
    landed: Count
    by_dtype: dict[str, Count]
    unknown: Annotated[
        Count, said("Planned nodes for which the compiler does not report the dtype.")
    ] = 0  # the first artifacts do not have this key


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
    serving: Annotated[
        str | SkipJsonSchema[None],
        Field(
            exclude_if=absent, description="The backend whose latency is told, if it is another."
        ),
    ] = None
    latency: Annotated[
        Latency | SkipJsonSchema[None],
        Field(exclude_if=absent, description="Of its layers, if another backend serves."),
    ] = None


class PrecisionFigures(Record):
    """One precision of the model: its engine and its figures."""

    precision: str
    engine: EngineFacts | None = None
    latency: Latency | None = None
    accuracy: Score | None = None


class PendingEngine(Record):
    """The work that another host has to finish."""

    backend: str
    finish: Annotated[str, said("The command that finishes it on a host with the device.")]


class EngineSize(Record):
    """Bytes of the engine and of the baseline's engine."""

    bytes: Count
    baseline_bytes: Count | None = None
    evidence: Evidence


class CalibrationCheck(Record):
    """The result of the check of the calibration data."""

    verdict: Literal["clean", "suspect"]
    samples: AtLeastOne
    compared: Annotated[bool, said("Whether it was compared with evaluation data.")]
    findings: Rows[DataFinding]


class Result(Record):
    """The result of one build. Every key is present; a value that does not apply is null."""

    schema_: Literal["optkit.result/v1"] = Field(alias="schema")
    status: Status
    error: Failure | None = None
    artifact: Annotated[str | None, said("Folder of the artifact.")] = None
    model: str | None = None
    target: str | None = None
    precision: str | None = None
    engine: EngineFacts | None = None
    pending: Rows[PendingEngine]
    latency: Latency | None = None
    accuracy: Score | None = None
    fidelity: Fidelity | None = None
    baseline: PrecisionFigures | None = None
    references: Rows[PrecisionFigures]
    speedup: Annotated[
        Difference | None,
        said("Latency of the baseline divided by the latency, at the same batch."),
    ] = None
    drop: Annotated[
        Difference | None,
        said("A fraction; positive is worse. Relative if the metric is not a proportion."),
    ] = None
    size: EngineSize | None = None
    gate: GateVerdict | None = None
    recommendation: Annotated[Recommendation | SkipJsonSchema[None], Field(exclude_if=absent)] = (
        None
    )
    calibration: CalibrationCheck | None = None
    quantized: Annotated[
        QuantizedProducts | SkipJsonSchema[None],
        Field(exclude_if=absent, description="Of a quantized precision."),
    ] = None
    sizes: Annotated[
        DeclaredSizes | SkipJsonSchema[None],
        Field(exclude_if=absent, description="Of a model with axes of more than one size."),
    ] = None
    untrained: Annotated[
        str | SkipJsonSchema[None],
        Field(exclude_if=absent, description="Which parameters are random, if some are."),
    ] = None
    translation: Annotated[
        Translation | SkipJsonSchema[None],
        Field(exclude_if=absent, description="Of a command of another tool, if one was given."),
    ] = None
    seconds: dict[str, Number]
    """Step → seconds, and `total`."""
    cache_hits: Count
    parts: Annotated[
        dict[str, Result] | None,
        said("For a model of several graphs (encoder and decoder): results by part."),
    ] = None


class Results(Record):
    """The results of several targets or precisions."""

    schema_: Literal["optkit.results/v1"] = Field(alias="schema")
    results: Rows[Result]
    fleet: Annotated[
        str | None,
        said("The folder with fleet.json and the comparison; null if nothing was tried."),
    ] = None
