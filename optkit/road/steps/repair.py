from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.documents.given_graph import AskedProduct, GraphRepair, Quantizer
from optkit.facts.precisions import Precision
from optkit.ground.execute.step import Step, StepInput
from optkit.road.steps.graph import Graph


@dataclass(frozen=True, kw_only=True)
class RepairedGraph(Graph):
    """The repaired graph. `quantized`: whether the given graph was quantized at all; `left`:
    integer operators that no repair rewrites; `assignment`: product → its new precision."""

    quantized: bool
    tool: Quantizer
    products: tuple[AskedProduct, ...]
    repairs: tuple[GraphRepair, ...]
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
    version = 5
    tools = ("numpy", "onnx", "onnx-ir", "ml-dtypes")
    stays = True

    graph: StepInput
    file: StepInput
    forms_only: bool = False
