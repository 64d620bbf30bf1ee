from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.documents.report import LayerFidelity
from optkit.evidence import Evidence
from optkit.execute.step import Input, Result, Step, named


@dataclass(frozen=True, kw_only=True)
class ComparedLayers(Result):
    layers: LayerFidelity


@dataclass(frozen=True, kw_only=True)
class CompareLayers(Step[ComparedLayers]):
    """Fidelity of every quantized layer to the FP32 graph that was quantized, alone and with all
    others, and what the outputs gain where one layer is FP32 again, or without the Q/DQ pairs that
    have a fault.

    `file`: of the graph; `nodes`: node → quantized precision; `count`: samples that are looked at;
    `restored`: how many groups of layers, those with the most noise of their own, are made FP32
    again.
    """

    name = "compare_layers"
    version = 4
    tools = ("onnxruntime", "numpy", "onnx", "onnx-ir")
    stays = True

    reference: Input
    graph: Input
    samples: Input
    file: str
    nodes: Mapping[str, str]
    count: int = named("samples")
    restored: int
    batch: int | None


def uncompared(reason: str) -> LayerFidelity:
    """Where nothing is compared."""
    return LayerFidelity(
        evidence=Evidence.SIMULATED, reference="fp32", samples=0, reason=reason,
        rows=(), values=(), faults=(),
    )  # fmt: skip
