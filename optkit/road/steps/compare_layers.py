from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.documents.report import LayerFidelity
from optkit.facts.evidence import Evidence
from optkit.facts.precisions import Precision
from optkit.ground.execute.step import Step, StepInput, StepResult, named


@dataclass(frozen=True, kw_only=True)
class LayerComparison(StepResult):
    layers: LayerFidelity


@dataclass(frozen=True, kw_only=True)
class CompareLayers(Step[LayerComparison]):
    """Fidelity of every quantized layer to the FP32 graph before quantization, alone and with all
    others. Also the gain at the outputs if one layer is FP32 again, or if suspicious Q/DQ pairs are
    removed.

    `file`: the file of the graph; `nodes`: node → quantized precision; `count`: the number of
    samples; `restored`: for how many groups of layers, those with the most noise alone, the gain in
    FP32 is computed.
    """

    name = "compare_layers"
    version = 10
    tools = ("onnxruntime", "numpy", "onnx", "onnx-ir")
    stays = True

    reference: StepInput
    graph: StepInput
    samples: StepInput
    file: str
    nodes: Mapping[str, Precision]
    count: int = named("samples")
    restored: int


def uncompared(reason: str) -> LayerFidelity:
    """The result if nothing is compared."""
    return LayerFidelity(
        evidence=Evidence.SIMULATED,
        reference="fp32",
        samples=0,
        reason=reason,
        rows=(),
        values=(),
        faults=(),
    )
