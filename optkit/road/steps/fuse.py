from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput, beside_the_key, spread
from optkit.road.steps.graph import RandomInputs, Rewritten


@dataclass(frozen=True, kw_only=True)
class FusedGraph(Rewritten):
    """`max_error`: the largest difference from the outputs of the unfused graph, relative to the
    largest value; None if they were not compared."""

    max_error: float | None


@dataclass(frozen=True, kw_only=True)
class Fuse(Step[FusedGraph]):
    """The `standard` form, FP32 inside. Its outputs are compared with those of the unfused graph on
    `samples`, or without these on random inputs, unless `compare` is False for the reason
    `uncompared`. If the outputs of a half-precision model differ from those of its FP32 form, a
    warning says so.

    `arrange`: the graph is in this form already, and its products get the form whose weights can be
    quantized. If none changes, the graph is the given one, and is not compared."""

    name = "fuse"
    version = 12
    tools = ("onnx", "onnx-ir", "onnxscript", "onnxruntime")
    stays = True

    graph: StepInput
    samples: StepInput | None = None
    random: RandomInputs = spread()
    compare: bool = True
    arrange: bool = False
    uncompared: str | None = beside_the_key(None)
