from __future__ import annotations

from dataclasses import dataclass

from optkit.facts.tensors import InputSpec
from optkit.ground.execute.step import Step, StepInput, beside_the_key, named
from optkit.road.steps.collect import Samples


@dataclass(frozen=True, kw_only=True)
class Divide(Step[Samples]):
    """Samples of a whole encoder-decoder → those of one part, with the inputs `specs`. `encoder`:
    its FP32 graph, if the part is the decoder, whose samples then contain the outputs of this
    graph. `optional`: axes that may be empty."""

    name = "divide"
    version = 2
    tools = ("onnxruntime", "numpy", "safetensors")
    stays = True

    samples: StepInput
    encoder: StepInput | None = None
    specs: tuple[InputSpec, ...] = named("inputs")
    optional: tuple[str, ...]
    memory: int = beside_the_key()
