from __future__ import annotations

from dataclasses import dataclass

from optkit.facts.measurement import Deviation
from optkit.ground.execute.step import Step, StepResult, named
from optkit.road.steps.compare import Comparison


@dataclass(frozen=True, kw_only=True)
class DeviationResult(StepResult):
    deviation: Deviation


@dataclass(frozen=True, kw_only=True)
class Deviate(Comparison, Step[DeviationResult]):
    """The noise of a graph's outputs relative to the FP32 fused graph on the first `count`
    samples."""

    name = "deviate"
    version = 6
    tools = ("onnxruntime", "numpy")
    stays = True

    count: int = named("samples")
