from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput
from optkit.road.steps.graph import Rewritten


@dataclass(frozen=True, kw_only=True)
class DequantizedGraph(Rewritten):
    """The float graph. `relus`: Relus that were written where a Q/DQ pair cut at zero."""

    relus: int = 0


@dataclass(frozen=True, kw_only=True)
class Dequantize(Step[DequantizedGraph]):
    """A graph that another tool has quantized → the float graph, with its rounded weights."""

    name = "dequantize"
    version = 1
    tools = ("numpy", "onnx", "onnx-ir", "ml-dtypes")
    stays = True

    graph: StepInput
