"""Why an artifact is not faster, and why its accuracy fell: what `optkit explain --json` prints."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.documents.measured import DifferenceFigures, FidelityFigures, ScoreFigures
from optkit.documents.record import Count, Number, Record, Rows, Share, said
from optkit.evidence import Evidence

EXPLAIN: Final = "optkit.explain/v1"

Rule = Literal[
    "unfused_pair", "left_in_float", "does_not_pay", "layout", "cast", "memory_bound",
    "heavy_weight", "clipped", "coarse", "duplicated", "unread", "weight_axis", "weight_scale",
    "alignment", "sensitive",
]  # fmt: skip


class FindingCost(Record):
    """What the change would win back."""

    share: Annotated[
        Share,
        said("Of the latency, of the layers' time or of the noise, whichever is more."),
    ]
    of: Annotated[
        Literal["latency", "layers", "noise"],
        said("What it is a share of; layers: of the time of all layers; noise: at the outputs."),
    ]
    evidence: Evidence
    ms: Number | None = None
    db: Number | None = None
    points: Annotated[Number | None, said("The drop's part, a fraction as the drop is.")] = None


class RecipeChange(Record):
    """What would mend it."""

    text: str
    recipe: Annotated[Rows[str], said("Lines of a recipe.")]


class ExplainFinding(Record):
    """What costs time or accuracy."""

    rule: Rule
    question: Literal["speed", "accuracy"]
    what: str
    why: str
    nodes: Rows[str]
    modules: Rows[str]
    cost: FindingCost
    change: RecipeChange
    limit: Annotated[
        bool,
        said("No fault: what this model costs on this device at this batch."),
    ]


class CallLatency(Record):
    """The latency that the findings are compared with."""

    evidence: Evidence
    p50_ms: Number
    batch: int


class ComparedLayers(Record):
    """What the layers' fidelity rests on; the rows are in report.json."""

    evidence: Evidence
    samples: Count
    sqnr_db: Annotated[Number | None, said("At the outputs; null: equal.")] = None
    reason: Annotated[str | None, said("Why nothing was compared.")] = None


class SpentTime(Record):
    """Milliseconds by what layers do."""

    product: Number
    convert: Number
    layout: Number
    other: Number


class LayerTime(Record):
    """Milliseconds of all layers by what they do."""

    evidence: Evidence
    note: str | None = None
    candidate: SpentTime
    baseline: SpentTime


class WrittenRecipe(Record):
    """The file that --apply wrote."""

    path: str
    missing: Annotated[
        Rows[str],
        said("What the command line has to give again: KEY=VALUE, for --set."),
    ]


class LeftFinding(Record):
    """A finding that no setting of a recipe mends."""

    rule: str
    nodes: Rows[str]
    text: Annotated[str, said("What would mend it.")]


class Explained(Record):
    """Why an artifact is not faster, and why its accuracy fell. Every key is present; what does not
    apply is null."""

    schema_: Literal["optkit.explain/v1"] = Field(alias="schema")
    artifact: str
    model: str | None = None
    target: str
    precision: str
    baseline: str | None = None
    speedup: DifferenceFigures | None = None
    latency: CallLatency | None = None
    baseline_latency: CallLatency | None = None
    accuracy: ScoreFigures | None = None
    drop: DifferenceFigures | None = None
    fidelity: FidelityFigures | None = None
    layers_compared: ComparedLayers | None = None
    time: Annotated[LayerTime | None, said("Null: not known, see untimed.")] = None
    untimed: Annotated[
        str | None,
        said("Why no layer's time is known; null where it is, and of what consists of parts."),
    ] = None
    findings: Annotated[Rows[ExplainFinding], said("Faults, the most costly first, then limits.")]
    recipe: Annotated[
        WrittenRecipe | None, said("Null: none was asked for, or no setting changes.")
    ] = None
    left: Annotated[
        Rows[LeftFinding] | None,
        said("With --apply: the findings that no setting of a recipe mends; else null."),
    ] = None
    parts: Annotated[
        dict[str, Explained] | None,
        said("Of a model that is several graphs: the same of each, by name."),
    ] = None
