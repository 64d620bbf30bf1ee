"""The cost of a node, and a summary of a graph. Pure data: `graph.costs` computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.tensors import TensorInfo


@dataclass(frozen=True)
class Recurrence:
    """A recurrent cell (LSTM, GRU, RNN): it runs `steps` times, one after the other, in both
    directions together. `macs`: of all steps."""

    steps: int
    macs: int


@dataclass(frozen=True)
class NodeCost:
    """One node at given sizes of the axes. `macs` is 0 for operators that do not multiply by a
    matrix, and for recurrent cells; `macs`, `in_bytes`, `out_bytes` are None if a shape does not
    follow from the axes. `columns`: those of a product's output as a matrix (for a convolution, its
    channels); `bits`: those of one of its elements. `recurrence`: None for other nodes, and if a
    shape does not follow. `op`: of the user's operators "domain:name"."""

    op: str
    macs: int | None
    weight_bytes: int
    in_bytes: int | None
    out_bytes: int | None
    columns: int | None = None
    bits: int | None = None
    recurrence: Recurrence | None = None

    @property
    def foreign(self) -> bool:
        """An operator of the user, which may compute anything."""
        return ":" in self.op


@dataclass(frozen=True)
class GraphPrecision:
    """`initializers`: dtype → number of constants. The other fields count the nodes that multiply
    by weights: all of them, and those that read codes."""

    initializers: Mapping[str, int]
    weighted_nodes: int
    quantized_nodes: int


@dataclass(frozen=True)
class GraphSummary:
    """The facts about a graph in `optkit inspect`, with these sizes (`axes`) of the named axes.
    `macs_unknown`: the number of nodes whose `macs` are unknown."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    opset: Mapping[str, int]
    nodes: int
    """The number of nodes."""
    operators: Mapping[str, int]
    parameters: int
    weight_bytes: int
    axes: Mapping[str, int]
    macs: int
    macs_unknown: int
    precision: GraphPrecision
