from __future__ import annotations

from dataclasses import dataclass

from optkit.facts.assignment import Scheme
from optkit.ground.execute.step import Resumes, Step, StepInput, beside_the_key, spread
from optkit.road.steps.quantize import QuantizationResult, QuantizationSettings


@dataclass(frozen=True, kw_only=True)
class QuantizeLayers(Resumes, Step[QuantizationResult]):
    """As `Quantize`, but only for weights in blocks, and with samples instead of statistics. The
    graph runs part by part, so the memory never holds all weights or all moments.

    `batch`: samples per run, None: as they were written; `planned_memory`: the bytes of memory that
    determine the size of the parts, and so the result.
    """

    name = "quantize_layers"
    version = 8  # recurrent cells
    tools = ("onnxruntime", "numpy", "onnx", "onnx-ir", "ml-dtypes")

    fused: StepInput
    carrier: StepInput
    samples: StepInput
    scheme: Scheme = spread()
    settings: QuantizationSettings = spread()
    batch: int | None
    planned_memory: int
    memory: int = beside_the_key()
