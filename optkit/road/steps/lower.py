from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput
from optkit.road.steps.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Lower(Step[Graph]):
    """A graph, and its simulation if it has one, in an opset that is not newer than this one."""

    name = "lower"
    version = 1
    tools = ("onnx", "onnx-ir")
    stays = True

    graph: StepInput
    opset: int
