from __future__ import annotations

from dataclasses import dataclass

from optkit.assignment import Scheme
from optkit.execute.step import Input, Step, beside_the_key, spread
from optkit.steps.fuse import Fused
from optkit.steps.quantize import QuantizationSettings


@dataclass(frozen=True, kw_only=True)
class Compensate(Step[Fused]):
    """FP32 graph and its statistics → the graph whose weights in blocks make up for the errors of
    the quantized products before them, with the second moments of the inputs that these leave. The
    fields are as in `Quantize` and `Calibrate`."""

    name = "compensate"
    version = 1
    tools = ("onnxruntime", "numpy", "onnx-ir", "ml-dtypes")
    stays = True

    graph: Input
    statistics: Input
    samples: Input
    scheme: Scheme = spread()
    settings: QuantizationSettings = spread()
    batch: int | None
    memory: int = beside_the_key()
