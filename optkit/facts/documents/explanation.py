"""Why an artifact is not faster, and why its accuracy fell: the object of `optkit explain
--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, get_args

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema, WithJsonSchema

from optkit.facts.documents.measured import BuildFacts
from optkit.facts.documents.record import Number, Record, Rows, Share, said
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Fidelity, Score
from optkit.facts.plain_record import BESIDE, UNCHECKED, Count, PlainRecord, absent

EXPLAIN: Final = "optkit.explain/v1"
Rule = Literal[
    "unfused_pair", "left_in_float", "does_not_pay", "layout", "cast", "memory_bound",
    "heavy_weight", "clipped", "coarse", "duplicated", "unread", "weight_axis", "weight_scale",
    "alignment", "sensitive", "slow_operator", "written_out", "launches", "padding",
    "other_calibration_data",
]  # fmt: skip
RuleName = Annotated[
    Rule,
    # an open text: with an enum, a reader of the first version would refuse a rule that came later
    WithJsonSchema({"type": "string", "examples": list(get_args(Rule))}),
    said("The rule; `examples` has all of this version. None is lost, later versions have more."),
]


@dataclass(frozen=True)
class FindingCost(PlainRecord):
    """The time or the accuracy that the change would gain. Findings of all kinds are ranked by
    `share`. Null: unknown, or not applicable."""

    share: Share
    """Share of the latency, of the layers' time or of the noise: the largest."""
    of: Literal["latency", "layers", "noise"]
    """The total of the share; layers: the time of all layers; noise: at the outputs."""
    evidence: Evidence
    ms: Number | None = None
    db: Number | None = None
    points: Number | None = None
    """The part of the drop, in the unit of the drop."""


@dataclass(frozen=True)
class RecipeChange(PlainRecord):
    """The change that would help. `settings`: key path of the recipe → value."""

    text: str
    recipe: tuple[str, ...] = ()
    """Lines of a recipe."""
    settings: Annotated[Mapping[tuple[str, ...], object], UNCHECKED] = field(
        default_factory=dict, metadata=BESIDE
    )


@dataclass(frozen=True)
class ExplainFinding(PlainRecord):
    """A finding: something that costs time or accuracy. `what`: one sentence; `why`: the reason;
    `nodes` and `modules`: the ONNX nodes and PyTorch modules that it concerns; `always`: it is told
    whatever it costs."""

    rule: RuleName
    question: Literal["speed", "accuracy"]
    what: str
    why: str
    nodes: tuple[str, ...]
    modules: tuple[str, ...]
    cost: FindingCost
    change: RecipeChange
    limit: bool = False
    """Not a fault: a cost of this model on this device at this batch."""
    always: bool = field(default=False, metadata=BESIDE)


class CallLatency(Record):
    """The latency that the findings are compared with."""

    evidence: Evidence
    p50_ms: Number
    batch: int


class ComparedLayers(Record):
    """The comparison behind the fidelity of the layers; the rows are in report.json."""

    evidence: Evidence
    samples: Count
    sqnr_db: Annotated[Number | None, said("At the outputs; null if they are equal.")] = None
    reason: Annotated[str | None, said("The reason if nothing was compared.")] = None


class SpentTime(Record):
    """Milliseconds by what the layers do."""

    product: Number
    convert: Number
    layout: Number
    other: Number


class LayerTime(Record):
    """Milliseconds of all layers by what they do, for both models."""

    evidence: Evidence
    note: str | None = None
    candidate: SpentTime
    baseline: SpentTime
    copies_ms: Annotated[
        Number | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="Predicted, beside the layers: inputs and outputs over PCIe; absent if "
            "unknown.",
        ),
    ] = None


class FixedOperator(Record):
    """One operator that no precision makes faster."""

    op: str
    ms: Number
    share: Annotated[Share, said("Of the time of all layers.")]
    nodes: Annotated[Rows[str], said("The slowest first.")]


class FixedTime(Record):
    """The time that no precision shortens: of layers without a matrix product."""

    evidence: Evidence
    ms: Number
    share: Annotated[Share, said("Of the time of all layers.")]
    at_most: Annotated[
        Number | None,
        said("The speedup if all other layers took no time (Amdahl); null if there is no limit."),
    ] = None
    unfused_ms: Annotated[
        Number | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="Not in `ms`: kernels of operators that the baseline computes inside its "
            "products; absent if there are none.",
        ),
    ] = None
    operators: Annotated[Rows[FixedOperator], said("The slowest first, at most eight.")]


class WrittenRecipe(Record):
    """The file that --apply wrote."""

    path: str
    missing: Annotated[
        Rows[str], said("Settings that the command line must give again: KEY=VALUE, for --set.")
    ]


class LeftFinding(Record):
    """A finding that no setting of a recipe removes."""

    rule: RuleName
    nodes: Rows[str]
    text: Annotated[str, said("The change that would help.")]


class Explained(Record):
    """Why an artifact is not faster, and why its accuracy fell. Every key is present; a value that
    does not apply is null."""

    schema_: Literal["optkit.explain/v1"] = Field(alias="schema")
    artifact: str
    model: str | None = None
    target: str
    precision: str
    baseline: str | None = None
    """The precision of the baseline."""
    build: Annotated[BuildFacts | SkipJsonSchema[None], Field(exclude_if=absent)] = None
    speedup: Difference | None = None
    latency: CallLatency | None = None
    baseline_latency: CallLatency | None = None
    accuracy: Score | None = None
    drop: Difference | None = None
    fidelity: Fidelity | None = None
    layers_compared: ComparedLayers | None = None
    time: Annotated[LayerTime | None, said("Null if it is unknown; see `untimed`.")] = None
    untimed: Annotated[
        str | None, said("Why the times of layers are unknown; else null, and null for parts.")
    ] = None
    fixed: Annotated[
        FixedTime | SkipJsonSchema[None],
        Field(
            exclude_if=absent,
            description="What no precision makes faster; absent if times are unknown.",
        ),
    ] = None
    findings: Annotated[Rows[ExplainFinding], said("Faults, the most costly first, then limits.")]
    recipe: Annotated[
        WrittenRecipe | None, said("Null without --apply, or if no setting changes.")
    ] = None
    left: Annotated[
        Rows[LeftFinding] | None,
        said("With --apply: the findings that no setting removes; else null."),
    ] = None
    parts: Annotated[
        dict[str, Explained] | None,
        said("For a model of several graphs: the explanation of each, by name."),
    ] = None
