from __future__ import annotations

from dataclasses import dataclass

from optkit.execute.step import Input, Step
from optkit.steps.graph import Rewritten


@dataclass(frozen=True, kw_only=True)
class OrtGraph(Rewritten):
    """`in_place`: the caches that it writes in place; `instruction_set`: what its numbers assume of
    the CPU."""

    in_place: tuple[str, ...] = ()
    instruction_set: str | None = None


@dataclass(frozen=True, kw_only=True)
class ToOrt(Step[OrtGraph]):
    """A quantized graph in the operators that ONNX Runtime's CPU kernels run fastest. It is not
    compared: a sum in another order turns codes, here and there."""

    name = "ort"
    version = 9
    tools = ("onnx", "onnx-ir")
    stays = True

    graph: Input
