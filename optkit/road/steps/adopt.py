from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput
from optkit.road.steps.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Adopt(Step[Graph]):
    """A graph that was exported in the caller's process enters the chain."""

    name = "adopt"
    version = 1
    tools = ("onnx", "onnx-ir")
    stays = True

    model: StepInput
