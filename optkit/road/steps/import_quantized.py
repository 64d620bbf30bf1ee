from __future__ import annotations

from dataclasses import dataclass

from optkit.facts.precisions import Precision
from optkit.ground.execute.step import Step, StepInput
from optkit.road.steps.quantize import QuantizationResult


@dataclass(frozen=True, kw_only=True)
class ImportQuantized(Step[QuantizationResult]):
    """A graph that another tool has quantized takes the place of the quantized graph, with its own
    codes, scales and placements. `graph`: with the carriers of the build, and its simulation if
    these are half precision. `carrier`: the precision of the nodes that the tool left in floats."""

    name = "import_quantized"
    version = 7  # recurrent cells
    tools = ("numpy", "onnx", "onnx-ir", "ml-dtypes")
    stays = True

    graph: StepInput
    carrier: Precision
