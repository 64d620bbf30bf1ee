from __future__ import annotations

from dataclasses import dataclass

from optkit.execute.step import Input, Step, beside_the_key, spread
from optkit.steps.graph import RandomInputs, Rewritten


@dataclass(frozen=True, kw_only=True)
class Fused(Rewritten):
    """`max_error`: the largest difference from the unfused graph's outputs, relative to the largest
    value; None: they were not compared."""

    max_error: float | None


@dataclass(frozen=True, kw_only=True)
class Fuse(Step[Fused]):
    """The `standard` form, FP32 inside; its outputs are compared with the unfused graph's on
    `samples`, else on random inputs, unless `compare` is False for the reason `uncompared`. A
    half-precision model whose outputs differ from it is told of."""

    name = "fuse"
    version = 7
    tools = ("onnx", "onnx-ir", "onnxscript", "onnxruntime")
    stays = True

    graph: Input
    samples: Input | None = None
    random: RandomInputs = spread()
    compare: bool = True
    uncompared: str | None = beside_the_key(None)
