"""A graph that another tool has quantized: what `optkit doctor MODEL` found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.documents.record import Count, Number, Record, Rows, said
from optkit.evidence import Evidence

QUANTIZED_GRAPH: Final = "optkit.quantized-graph/v1"


class Quantizer(Record):
    """The tool that quantized the graph."""

    name: str
    version: str | None = None
    recognized_by: str


class OperandFormat(Record):
    """The codes of an operand."""

    dtype: str
    granularity: Annotated[str, said("tensor, channel, block, or dynamic: a scale for each run.")]
    symmetric: bool


class AskedProduct(Record):
    """A Conv, MatMul or Gemm with a constant weight, as the file has it."""

    node: str
    op: str
    weight: Annotated[OperandFormat | None, said("Null: floats.")] = None
    activation: Annotated[OperandFormat | None, said("Null: floats.")] = None
    precision: Annotated[
        str | None, said("The precision that is meant; null: none of 8 bits or less.")
    ] = None


class GraphRepair(Record):
    """A repair that changed the graph."""

    text: str
    exact: Annotated[bool, said("It changes numbers by float rounding at most.")]
    nodes: Rows[str]


class CompiledGraph(Record):
    """What the compiler of the target does with a graph."""

    evidence: Annotated[Evidence, said("pending: no compiler for this target is here.")]
    backend: str | None = None
    planned: Annotated[Count | None, said("Null if the graph was not compiled.")] = None
    landed: Annotated[Count | None, said("Likewise.")] = None
    refusal: Annotated[str | None, said("Why it was not compiled.")] = None
    missed: Annotated[
        Mapping[str, str | None], said("Node that did not land → the dtype in which it runs.")
    ]


class GraphFidelity(Record):
    """SQNR in dB of three graphs on the same inputs, at the worst output; null if the outputs are
    bit-equal. The float graph is the given one without Q/DQ, or the one that was named."""

    evidence: Evidence
    samples: Count
    inputs: Annotated[Literal["samples", "random"], said("random: no samples were given.")]
    given_to_float: Number | None = None
    repaired_to_float: Number | None = None
    repaired_to_given: Number | None = None


class QuantizedGraph(Record):
    """A graph that another tool has quantized: what it asks for, and what becomes of it on a target
    before and after the repairs that TensorRT needs."""

    schema_: Literal["optkit.quantized-graph/v1"] = Field(alias="schema")
    model: str
    target: str
    producer: Quantizer
    requested: Rows[AskedProduct]
    repairs: Rows[GraphRepair]
    left: Annotated[Rows[str], said("Integer operators that optkit does not rewrite.")]
    before: CompiledGraph
    after: CompiledGraph
    fidelity: GraphFidelity
    out: Annotated[str | None, said("The file of the repaired graph.")] = None
