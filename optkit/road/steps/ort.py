from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput
from optkit.road.steps.graph import Rewritten


@dataclass(frozen=True, kw_only=True)
class OrtGraph(Rewritten):
    """`in_place`: the caches that the graph writes in place; `instruction_set`: the instructions of
    the CPU on which its numbers depend."""

    in_place: tuple[str, ...] = ()
    instruction_set: str | None = None


@dataclass(frozen=True, kw_only=True)
class ToOrt(Step[OrtGraph]):
    """A quantized graph, written in the operators for which ONNX Runtime has the fastest CPU
    kernels. Its outputs are not compared: a sum in another order can change single codes. `opset`:
    the newest that it may have."""

    name = "ort"
    version = 14
    tools = ("onnx", "onnx-ir")
    stays = True

    graph: StepInput
    opset: int | None = None
