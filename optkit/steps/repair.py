from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from optkit.execute.step import Input, Step
from optkit.precisions import Precision
from optkit.steps.graph import Graph


@dataclass(frozen=True)
class Tool:
    """The tool that quantized a graph, and by what it was recognized."""

    name: str
    version: str | None
    recognized_by: str


@dataclass(frozen=True)
class OperandCodes:
    """The codes that an operand of a product has. `granularity`: tensor, channel, block, or dynamic
    (one scale, computed in each run)."""

    dtype: str
    granularity: str
    symmetric: bool


@dataclass(frozen=True)
class RequestedProduct:
    """A Conv, MatMul or Gemm with a constant weight. None: this operand is a float. `precision`:
    the precision of optkit that is meant; None: no quantized one."""

    node: str
    op: str
    weight: OperandCodes | None
    activation: OperandCodes | None
    precision: Precision | None


@dataclass(frozen=True)
class DoneRepair:
    """A repair, and the nodes that it changed. `exact`: it changes numbers by float rounding at
    most."""

    name: str
    text: str
    exact: bool
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RepairedGraph(Graph):
    """The repaired graph. `quantized`: whether the given graph was quantized at all; `left`:
    integer operators that no repair rewrites; `assignment`: product → its new precision."""

    quantized: bool
    tool: Tool
    products: tuple[RequestedProduct, ...]
    repairs: tuple[DoneRepair, ...]
    left: tuple[str, ...]
    assignment: Mapping[str, Precision]

    @property
    def of_products(self) -> bool:
        """Whether the weight of a product has codes, or an integer operator is left."""
        return bool(self.left) or any(one.weight is not None for one in self.products)

    @property
    def precision(self) -> Precision | None:
        """The precision of most products; None: no product has codes that TensorRT takes."""
        counts = Counter(self.assignment.values()).most_common(1)
        return counts[0][0] if counts else None


@dataclass(frozen=True, kw_only=True)
class RepairGraph(Step[RepairedGraph]):
    """A graph that another tool has quantized → the same with the Q/DQ pairs that TensorRT takes.
    `file`: the file from which the graph was read, which names the tool. `forms_only`: only write
    Q/DQ pairs instead of other forms."""

    name = "repair"
    version = 4
    tools = ("numpy", "onnx", "onnx-ir", "ml-dtypes")
    stays = True

    graph: Input
    file: Input
    forms_only: bool = False
