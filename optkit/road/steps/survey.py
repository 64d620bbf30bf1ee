from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.node_cost import NodeCost
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.ground.execute.step import Step, StepInput, StepResult


@dataclass(frozen=True)
class QuantizableLayer:
    """A product with a constant weight, the value that it reads, and the precisions that it can
    have."""

    node: str
    reads: str
    cost: NodeCost
    precisions: tuple[Precision, ...]


@dataclass(frozen=True, kw_only=True)
class QuantizableLayers(StepResult):
    """`reasons`: those of the nodes that no precision can quantize."""

    layers: tuple[QuantizableLayer, ...]
    reasons: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ListLayers(Step[QuantizableLayers]):
    """For a search: the layers that each precision could quantize, the values that they read, and
    the sizes of their weights. `rules`: precision → its placement rules."""

    name = "survey"
    version = 4
    tools = ("onnx", "onnx-ir")
    stays = True

    graph: StepInput
    statistics: StepInput | None = None
    rules: Mapping[Precision, PlacementRules]
    carrier: str
    axes: Mapping[str, int]
