"""The report: the result of a build and everything behind it (report.json)."""

from __future__ import annotations

from typing import Annotated, Final, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from optkit.documents.measured import LatencyFigures, Outcome
from optkit.documents.prices import DatedPrice
from optkit.documents.record import (
    Count,
    Interval,
    NotNegative,
    Number,
    Object,
    Record,
    Rows,
    absent,
    said,
)
from optkit.documents.result import Result
from optkit.evidence import Evidence

REPORT: Final = "optkit.report/v1"

Fault = Literal["clipped", "coarse", "duplicated", "unread"]
T = TypeVar("T")


class BothSides(Record, Generic[T]):
    """Of the model as it was built, and of the baseline."""

    engine: T
    baseline: T


class GateOutcome(Record):
    """One gate: its limit, what was seen, and the outcome with the reason in words."""

    gate: str
    limit: Number
    value: Number | None = None
    ci95: Interval | None = None
    evidence: Evidence | None = None
    outcome: Outcome
    reason: str


class TensorFacts(Record):
    """One tensor at a fused layer's border. A dimension of -1 is dynamic."""

    name: str
    shape: Rows[int]
    dtype: str


class LayerFacts(Record):
    """One layer of a compiled engine, as its own layer list states it."""

    name: str
    kind: str
    inputs: Rows[TensorFacts]
    constants: Rows[TensorFacts]
    outputs: Rows[TensorFacts]
    nodes: Rows[str]
    products: Annotated[
        Rows[str],
        said("Conv, MatMul and Gemm among the nodes that it multiplies."),
    ]
    dtype: Annotated[str | None, said("What it multiplies in.")] = None
    weight_dtype: Annotated[str | None, said("What it reads of its constant weight.")] = None


class LandedNode(Record):
    """One planned node and what became of it."""

    node: str
    op: str
    planned: str
    landed: Annotated[bool | None, said("Null: the compiler does not tell.")] = None
    dtype: str | None = None
    layer: str | None = None
    note: Annotated[
        str | None,
        said("Why it does not count although its weight is stored as planned."),
    ] = None


class NodeDecision(Record):
    """One considered node: its precision, and the range it was given or why it stayed float."""

    node: str
    precision: str
    reason: str | None = None
    activation: str | None = None
    low: Number | None = None
    high: Number | None = None
    clipped: Annotated[
        Number | None, said("Share of the calibration elements outside the range.")
    ] = None
    method: Annotated[str | None, said("The observer that chose the range.")] = None


class TensorFidelity(Record):
    """One tensor beside its reference."""

    sqnr_db: Annotated[Number | None, said("Null: equal.")] = None
    cosine: Number
    max_abs_error: Number


class OutputFidelity(Record):
    """At the outputs."""

    sqnr_db: Annotated[Number | None, said("Null: equal to the reference.")] = None


class CodeUse(Record):
    """How a weight's int8 codes use their range."""

    reach: Annotated[Number, said("The largest magnitude over 127.")]
    saturated: Annotated[Number, said("The share of codes that have it.")]


class LayerFidelityRow(Record):
    """One quantized layer beside the FP32 graph's. Fidelities are null where sums leave float32."""

    node: str
    op: str
    module: Annotated[str | None, said("The PyTorch module's path.")] = None
    precision: str
    tensor: Annotated[str, said("What the layer leaves in both graphs.")]
    reads: Annotated[Rows[str], said("Values that it reads through a Q/DQ pair.")]
    propagated: TensorFidelity | None = None
    isolated: TensorFidelity | None = None
    weights: TensorFidelity | None = None
    scales: Literal["tensor", "channel", "summed", "block"] | None = None
    by_channel_db: Annotated[
        Number | None,
        said("SQNR of the weight, rounded with one scale per output channel."),
    ] = None
    codes: Annotated[CodeUse | None, said("Null: it has no int8 codes.")] = None
    restored: Annotated[
        OutputFidelity | None,
        said("With all layers that read the same values in FP32."),
    ] = None


class PairFidelity(Record):
    """What one Q/DQ pair clips and rounds."""

    pair: Annotated[str, said("Its QuantizeLinear.")]
    read: Annotated[bool, said("A quantized product reads its codes.")]
    again: Annotated[bool, said("It quantizes what a pair gives.")]
    value: str
    readers: Rows[str]
    fault: Fault | None = None
    without: OutputFidelity | None = None
    sqnr_db: Number | None = None
    share: Annotated[Number, said("Of the elements, beyond the range.")]
    noise: Annotated[Number, said("Of the error's power, theirs.")]
    low: Number
    high: Number
    seen: Interval


class FaultFidelity(Record):
    """What the outputs have without all pairs of one suspected fault."""

    fault: Fault
    pairs: Rows[str]
    without: OutputFidelity | None = None


class LayerFidelity(Record):
    """Every quantized layer beside the FP32 graph's, and what each pair clips."""

    evidence: Evidence
    reference: str
    samples: Count
    sqnr_db: Annotated[Number | None, said("At the model's outputs, on these samples.")] = None
    reason: Annotated[str | None, said("Why nothing was compared.")] = None
    rows: Rows[LayerFidelityRow]
    values: Rows[PairFidelity]
    faults: Rows[FaultFidelity]


class MillionCost(Record):
    """Dollars for a million samples, of the engine and of the baseline."""

    engine: NotNegative
    baseline: NotNegative | None = None


class ServingCost(Record):
    """Of a million samples at the result's latency and batch, on a device that never waits."""

    evidence: Evidence
    price: DatedPrice
    usd_per_million: MillionCost


class StepTaken(Record):
    """One step of the build: its key in the store, and whether its result was there already."""

    step: str
    label: str
    key: str
    hit: bool
    seconds: Number


Shape = Rows[Count]


class AskedOfCompiler(Record):
    """What one compiler was asked."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    backend: str
    precision: str
    profile: Annotated[
        dict[str, tuple[Shape, Shape, Shape]],
        said("Shapes of each input: least, tuned for, most."),
    ]
    workspace_bytes: Count | None = None
    options: Object
    reasons: Object


class FinishedOn(Record):
    """The machine that finished the build, and its versions, where it was another."""

    machine: Object
    versions: dict[str, str]


class Provenance(Record):
    """What the build was made of, step by step."""

    recipe: Object
    digests: dict[str, str | None]
    versions: dict[str, str]
    steps: Rows[StepTaken]
    build_spec: Annotated[
        dict[str, AskedOfCompiler], said("By role: what each compiler was asked.")
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


class Report(Record):
    """The result and everything behind it (report.json)."""

    schema_: Literal["optkit.report/v1"] = Field(alias="schema")
    result: Result
    gates: Rows[GateOutcome]
    latencies: Annotated[BothSides[Rows[LatencyFigures]], said("One per batch size.")]
    latency_samples: Annotated[
        BothSides[Rows[Number]],
        said("Milliseconds of every run, in order, at the result's batch size."),
    ]
    latency_rounds: Annotated[
        BothSides[Count],
        said("How many rounds those runs are, equally long; 0 where nothing was measured."),
    ]
    layers: BothSides[Rows[LayerFacts]]
    landing: Rows[LandedNode]
    landing_activations: Annotated[
        Rows[LandedNode], said("MatMuls of two activations; never planned.")
    ]
    cost: ServingCost | None = None
    conditions: Annotated[Object, said("The host while latency was measured.")]
    quantization: Rows[NodeDecision]
    fusion: Annotated[Rows[Object], said("What was rewritten, or declined.")]
    cast: Annotated[Object, said("What became FP16.")]
    preparation: Annotated[
        Rows[Object],
        said("Values smoothed or equalized before quantization, or why not."),
    ]
    layer_fidelity: Annotated[LayerFidelity | None, said("Null where nothing was quantized.")] = (
        None
    )
    provenance: Provenance
