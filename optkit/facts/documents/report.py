"""The report: the result of a build and all its figures (report.json)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from optkit.facts.device_facts import Price
from optkit.facts.documents.explanation import ExplainFinding
from optkit.facts.documents.export_comparison import ExportCheck, ExportLeftOut
from optkit.facts.documents.pictures import WorstPictures
from optkit.facts.documents.record import NotNegative, Number, Object, Record, Rows, said
from optkit.facts.documents.result import Result
from optkit.facts.engines import FusedLayer, LandingRow
from optkit.facts.evidence import Evidence
from optkit.facts.listed_steps import StepTaken
from optkit.facts.measurement import GateRow, Latency
from optkit.facts.plain_record import Count, PlainRecord, absent

REPORT: Final = "optkit.report/v1"

Fault = Literal["clipped", "coarse", "duplicated", "unread"]
T = TypeVar("T")


class BothSides(Record, Generic[T]):
    """A figure of the built model, and of the baseline."""

    engine: T
    baseline: T


class TimedLayers(Record):
    """The time of each layer of `layers`, in the same order, at the sizes that the engine is tuned
    for."""

    evidence: Evidence
    note: str
    milliseconds: BothSides[Rows[NotNegative]]
    """One number for each layer."""


GIVEN = "as given"
"""The method of a range that the tool chose which quantized the graph."""


class NodeDecision(Record):
    """One node that was considered: its precision, its range, and the reason why it stayed in float
    or why its product has a finer form than others."""

    node: str
    precision: str
    reason: str | None = None
    activation: str | None = None
    low: Number | None = None
    high: Number | None = None
    clipped: Annotated[
        Number | None, said("Share of the calibration values outside the range.")
    ] = None
    method: Annotated[str | None, said("The observer that chose the range.")] = None


class TensorFidelity(Record):
    """The fidelity of one tensor to its reference."""

    sqnr_db: Annotated[Number | None, said("Null if both are equal.")] = None
    cosine: Number
    max_abs_error: Number


class OutputFidelity(Record):
    """The fidelity of the outputs."""

    sqnr_db: Annotated[Number | None, said("Null if they equal the reference.")] = None


class CodeUse(Record):
    """How the int8 codes of a weight use their range."""

    reach: Annotated[Number, said("The largest magnitude of a code, divided by 127.")]
    saturated: Annotated[
        Number, said("The share of codes with this magnitude, beyond one per output channel.")
    ]


class LayerFidelityRow(Record):
    """The fidelity of one quantized layer to the FP32 graph. Fidelities are null if sums are too
    large for float32."""

    node: str
    op: str
    module: Annotated[str | None, said("The path of the PyTorch module.")] = None
    precision: str
    tensor: Annotated[str, said("The output of the layer, in both graphs.")]
    reads: Annotated[Rows[str], said("The values that it reads through a Q/DQ pair.")]
    propagated: TensorFidelity | None = None
    isolated: TensorFidelity | None = None
    weights: TensorFidelity | None = None
    scales: Literal["tensor", "channel", "summed", "block"] | None = None
    by_channel_db: Annotated[
        Number | None, said("SQNR of the weight, rounded with one scale per output channel.")
    ] = None
    codes: Annotated[CodeUse | None, said("Null if it has no int8 codes.")] = None
    restored: Annotated[
        OutputFidelity | None, said("If all layers that read the same values are in FP32.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class PairFidelity(PlainRecord):
    """The values that one Q/DQ pair clips and rounds. The range of its codes is from `low` to
    `high`; `seen`: the range of the values."""

    pair: str
    """The name of its QuantizeLinear."""
    read: bool
    """Whether a quantized product reads its codes."""
    again: bool
    """Whether it quantizes the output of another pair."""
    value: str
    """The name of the tensor."""
    readers: tuple[str, ...]
    fault: Fault | None = None
    without: OutputFidelity | None = None
    sqnr_db: Number | None = None
    """Null if the pair is exact."""
    share: Number
    """The share of values beyond the range."""
    noise: Number
    """The share of these values in the power of the error."""
    low: Number
    high: Number
    seen: tuple[Number, Number]


class FaultFidelity(Record):
    """The fidelity of the outputs without all pairs of one suspected fault."""

    fault: Fault
    pairs: Rows[str]
    without: OutputFidelity | None = None


class LayerFidelity(Record):
    """The fidelity of every quantized layer to the FP32 graph, and the values that each pair
    clips."""

    evidence: Evidence
    reference: str
    samples: Count
    sqnr_db: Annotated[Number | None, said("At the outputs of the model, on these samples.")] = None
    reason: Annotated[str | None, said("The reason if nothing was compared.")] = None
    rows: Rows[LayerFidelityRow]
    values: Rows[PairFidelity]
    faults: Rows[FaultFidelity]


class PaddedTokens(Record):
    """How many tokens of the samples are padding."""

    input: Annotated[str, said("The mask, or the ids that were counted.")]
    axis: Annotated[str | None, said("The axis of the tokens; null if its size is fixed.")] = None
    samples: Count
    given: Annotated[Number, said("Tokens of a sample with its padding: the mean.")]
    real: Annotated[Number, said("Tokens of a sample that are not padding: the mean.")]
    most: Annotated[Count, said("95 of 100 samples have at most so many tokens.")]
    longest: Count


class MillionCost(Record):
    """Dollars for a million samples, of the engine and of the baseline."""

    engine: NotNegative
    baseline: NotNegative | None = None


class ServingCost(Record):
    """The cost of a million samples at the latency and batch of the result, on a device that is
    never idle."""

    evidence: Evidence
    price: Price
    usd_per_million: MillionCost


Shape = Rows[Count]


class AskedOfCompiler(Record):
    """The specification that one compiler got."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    backend: str
    precision: str
    profile: Annotated[
        dict[str, tuple[Shape, Shape, Shape]],
        said("Shapes of each input: smallest, tuned, largest."),
    ]
    workspace_bytes: Count | None = None
    options: Object
    reasons: Object


class FinishedOn(Record):
    """The machine that finished the build, and its versions, if it was another machine."""

    machine: Object
    versions: dict[str, str]


class ExportComparison(Record):
    """Where the exported graph was compared with its model, and where it was not."""

    checks: Rows[ExportCheck]
    left_out: Rows[ExportLeftOut]


class Provenance(Record):
    """The inputs and steps of the build."""

    recipe: Object
    digests: dict[str, str | None]
    versions: dict[str, str]
    steps: Rows[StepTaken]
    build_spec: Annotated[
        dict[str, AskedOfCompiler], said("Role → the specification that its compiler got.")
    ]
    machine: Annotated[
        Object | SkipJsonSchema[None],
        Field(
            description="The device, its driver and host, where figures were measured; not if "
            "pending.",
            exclude_if=absent,
        ),
    ] = None
    finished: Annotated[FinishedOn | SkipJsonSchema[None], Field(exclude_if=absent)] = None


class Simulation(Record):
    """What a simulation assumes of the kernels of the target. `carrier`: the dtype of the values
    between kernels. `sums`: the dtype in which a kernel adds."""

    carrier: Literal["fp16", "bf16"]
    sums: Literal["fp32"]
    assumed: Annotated[str, said("One sentence.")]


class Report(Record):
    """The result of a build, and all its figures."""

    schema_: Literal["optkit.report/v1"] = Field(alias="schema")
    result: Result
    gates: Rows[GateRow]
    latencies: Annotated[BothSides[Rows[Latency]], said("One per batch size.")]
    latency_samples: Annotated[
        BothSides[Rows[Number]],
        said("Milliseconds of every run, in order, at the result's batch size."),
    ]
    latency_rounds: Annotated[
        BothSides[Count],
        said("The number of rounds, which are equally long; 0 if nothing was measured."),
    ] = BothSides(engine=0, baseline=0)  # the first artifacts do not have this key
    layers: BothSides[Rows[FusedLayer]]
    """The fused layers of the compiled engines."""
    layer_times: Annotated[
        TimedLayers | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="Absent if the layers can be neither measured nor predicted.",
        ),
    ] = None
    findings: Annotated[
        Rows[ExplainFinding] | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="What costs time and accuracy, as far as the build knows it: faults, then "
            "limits.",
        ),
    ] = None
    landing: Rows[LandingRow]
    landing_activations: Annotated[
        Rows[LandingRow], said("MatMuls of two activations, which are never planned.")
    ]
    cost: ServingCost | None = None
    conditions: Annotated[Object, said("The state of the host while latency was measured.")]
    quantization: Rows[NodeDecision]
    fusion: Annotated[Rows[Object], said("The rewrites that were applied or declined.")]
    cast: Annotated[Object, said("The nodes that were cast to FP16.")]
    simulation: Annotated[
        Simulation | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="What is assumed of the arithmetic of the target where accuracy and "
            "fidelity are simulated; absent where they are measured.",
        ),
    ] = None
    preparation: Annotated[
        Rows[Object],
        said("Values that were smoothed or equalized before quantization, or why not."),
    ] = ()  # the first artifacts do not have this key
    layer_fidelity: Annotated[LayerFidelity | None, said("Null if nothing was quantized.")] = None
    export: Annotated[
        ExportComparison | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="Absent if the model is an ONNX file, which is its own source.",
        ),
    ] = None
    padding: Annotated[
        PaddedTokens | SkipJsonSchema[None],
        Field(exclude_if=absent, description="Absent if the samples have no tokens."),
    ] = None
    worst: Annotated[
        WorstPictures | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="The pictures on which the built model loses most beside the baseline; "
            "absent if the task does not draw its samples.",
        ),
    ] = None
    provenance: Provenance
