from __future__ import annotations

from dataclasses import dataclass

from optkit.ground.execute.step import StepInput, beside_the_key
from optkit.road.steps.quantize import Quantize


@dataclass(frozen=True, kw_only=True)
class QuantizeInOrder(Quantize):
    """As `Quantize`, but weights in blocks make up for the errors of the quantized products before
    them, on these samples. `batch` is as in `Calibrate`."""

    name = "quantize_in_order"
    version = 5  # recurrent cells
    tools = ("onnxruntime", "numpy", "onnx", "onnx-ir", "ml-dtypes")

    samples: StepInput
    batch: int | None
    memory: int = beside_the_key()
