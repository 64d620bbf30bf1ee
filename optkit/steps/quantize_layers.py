from __future__ import annotations

from dataclasses import dataclass

from optkit.assignment import Scheme
from optkit.execute.step import Input, Resumes, Step, beside_the_key, spread
from optkit.steps.quantize import QuantizationSettings, Quantized


@dataclass(frozen=True, kw_only=True)
class QuantizeLayers(Resumes, Step[Quantized]):
    """As `Quantize` for weights alone in blocks, with samples instead of statistics: the graph runs
    part by part, so that neither all weights nor all moments are ever in memory.

    `batch`: samples in a run, None: as they were written; `planned_memory`: bytes that parts are
    made for, which the result depends on.
    """

    name = "quantize_layers"
    version = 1
    tools = ("onnxruntime", "numpy", "onnx", "onnx-ir", "ml-dtypes")

    fused: Input
    carrier: Input
    samples: Input
    scheme: Scheme = spread()
    settings: QuantizationSettings = spread()
    batch: int | None
    planned_memory: int
    memory: int = beside_the_key()
