"""What a node of a graph costs, and what a graph holds. Pure data: `graph.costs` counts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.tensors import TensorInfo


@dataclass(frozen=True)
class NodeCost:
    """One node at given axis sizes. `macs` is 0 for operators that do not multiply by a matrix;
    `macs`, `in_bytes`, `out_bytes` are None where a shape does not follow from the axes. `columns`:
    of a product's output as a matrix (channels of a convolution); `bits`: of one of its elements.
    """

    op: str
    macs: int | None
    weight_bytes: int
    in_bytes: int | None
    out_bytes: int | None
    columns: int | None = None
    bits: int | None = None


@dataclass(frozen=True)
class GraphPrecision:
    """`initializers`: dtype → number of constants; of the nodes that multiply by weights: how many
    there are, and how many read codes."""

    initializers: Mapping[str, int]
    weighted_nodes: int
    quantized_nodes: int


@dataclass(frozen=True)
class GraphSummary:
    """What `optkit inspect` tells of a graph, with the named axes at the sizes `axes`.
    `macs_unknown`: nodes whose `macs` are not known."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    opset: Mapping[str, int]
    nodes: int
    operators: Mapping[str, int]
    parameters: int
    weight_bytes: int
    axes: Mapping[str, int]
    macs: int
    macs_unknown: int
    precision: GraphPrecision
