"""The differences of two artifacts, graphs or reports: the object of `optkit diff --json`."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field, JsonValue
from pydantic.json_schema import SkipJsonSchema

from optkit.facts.documents.measured import BuildFacts
from optkit.facts.documents.record import Interval, Number, Record, Rows, said
from optkit.facts.evidence import Evidence
from optkit.facts.plain_record import absent

DIFF: Final = "optkit.diff/v1"

Kind = Literal["an artifact", "a graph", "a report"]
Seen = Literal["higher", "lower", "none", "unknown", "equal", "other"]
T = TypeVar("T")
Both = tuple[T, T]  # for A and B


class ComparedSide(Record):
    """What is compared: A, or B."""

    path: str
    kind: Kind
    digest: str | None = None
    model: str | None = None
    target: str | None = None
    precision: str | None = None
    build: Annotated[BuildFacts | SkipJsonSchema[None], Field(exclude_if=absent)] = None


class OperatorCount(Record):
    """The number of nodes with an operator, on both sides."""

    op: str
    a: int
    b: int


class NamedNode(Record):
    """A node that only one graph has."""

    name: str
    op: str


class ChangedNode(Record):
    """A node whose operator or attributes differ."""

    name: str
    op: Both[str]
    """The operator in A and in B."""
    attributes: Rows[str]


class NodeChanges(Record):
    """Nodes by name."""

    a: int
    b: int
    added: Rows[NamedNode]
    removed: Rows[NamedNode]
    changed: Rows[ChangedNode]
    rewired: Annotated[int, said("Nodes that differ only in the values that they read.")]


class ProductChange(Record):
    """The dtypes in which products of the same name multiply."""

    node: str
    a: str
    b: str


class WeightFacts(Record):
    """The form of a weight."""

    dtype: str | None = None
    shape: Rows[int]
    bytes: int


class ChangedWeight(Record):
    """A weight whose numbers differ."""

    name: str
    a: WeightFacts
    b: WeightFacts


class WeightChanges(Record):
    """Weights by name and digest."""

    bytes: Both[int]
    """Of all weights, in A and in B."""
    added: Rows[str]
    removed: Rows[str]
    changed: Rows[ChangedWeight]


class MovedScale(Record):
    """A scale that differs."""

    tensor: str
    count: Both[int]
    """The number of scales, in A and in B."""
    factor: Annotated[
        Interval | None, said("b divided by a: the lowest and the highest over the channels.")
    ] = None


class ScaleChanges(Record):
    """Scales of quantized tensors."""

    a: int
    b: int
    moved: Rows[MovedScale]


class GraphDiff(Record):
    """Two graphs."""

    same: bool
    opset: Both[JsonValue]
    """Domain → version, of A and of B."""
    inputs: Both[JsonValue]
    """[of A, of B]"""
    outputs: Both[JsonValue]
    """[of A, of B]"""
    operators: Annotated[Rows[OperatorCount], said("Operators whose number of nodes differs.")]
    nodes: NodeChanges
    precision: Annotated[
        Rows[ProductChange], said("Products of the same name that multiply in other dtypes.")
    ]
    weights: WeightChanges
    scales: ScaleChanges


class LayerChange(Record):
    """A node whose planned precision differs, or that runs in another precision."""

    node: str
    precision: Both[str | None]
    """As planned, in A and in B."""
    runs: Both[str | None]
    """As it runs, in A and in B."""


class KnownFigure(Record):
    """A figure of one side."""

    value: Number | str | None = None
    interval: Interval | None = None
    evidence: Evidence | None = None


class FigureChange(Record):
    """B compared with A: B / A (`ratio`), or B - A (`difference`)."""

    kind: Literal["ratio", "difference"]
    value: Number
    interval: Interval


class FigureDiff(Record):
    """A figure of both sides."""

    figure: str
    unit: str | None = None
    a: KnownFigure
    b: KnownFigure
    change: FigureChange | None = None
    seen: Annotated[
        Seen, said("none: no difference seen; unknown: see note; equal, other: for exact figures.")
    ]
    note: str | None = None


class KeyDiff(Record):
    """A key of a recipe and the like that differs, with both values."""

    key: str
    """The key that differs."""
    a: JsonValue = None
    """Its value in A."""
    b: JsonValue = None
    """Its value in B."""


class Diff(Record):
    """The differences of two artifacts, graphs or reports."""

    schema_: Literal["optkit.diff/v1"] = Field(alias="schema")
    a: ComparedSide
    b: ComparedSide
    same: Annotated[bool, said("Nothing differs, or all differences may be chance.")]
    graph: GraphDiff | None = None
    layers: Annotated[
        Rows[LayerChange],
        said("Nodes whose planned precision differs, or that run in another precision."),
    ]
    figures: Rows[FigureDiff]
    recipe: Rows[KeyDiff]
    data: Rows[KeyDiff]
    versions: Rows[KeyDiff]
