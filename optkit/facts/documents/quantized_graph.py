"""A graph that another tool has quantized: what `optkit doctor MODEL` found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.documents.given_graph import AskedProduct, GraphRepair, Quantizer
from optkit.facts.documents.record import Number, Record, Rows, said
from optkit.facts.evidence import Evidence
from optkit.facts.plain_record import Count

QUANTIZED_GRAPH: Final = "optkit.quantized-graph/v1"


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
