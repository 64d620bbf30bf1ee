from __future__ import annotations

from dataclasses import dataclass

from optkit.facts.assignment import Scheme
from optkit.ground.execute.step import Step, StepInput, beside_the_key, spread
from optkit.road.steps.fuse import FusedGraph
from optkit.road.steps.graph import RandomInputs
from optkit.road.steps.quantize import QuantizationSettings


@dataclass(frozen=True, kw_only=True)
class Prepare(Step[FusedGraph]):
    """FP32 graph and its statistics → the same function in a form that quantizes better, and the
    statistics of that form, with the factors that were folded into constants. Its outputs are
    compared with those of the graph before, as in `Fuse`."""

    name = "prepare"
    version = 14
    tools = ("onnxruntime", "numpy", "onnx-ir")
    stays = True

    graph: StepInput
    statistics: StepInput
    scheme: Scheme = spread()
    settings: QuantizationSettings = spread()
    samples: StepInput | None = None
    random: RandomInputs = spread()
    compare: bool = True
    uncompared: str | None = beside_the_key(None)
