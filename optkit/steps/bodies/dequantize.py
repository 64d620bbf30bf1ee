from __future__ import annotations

from pathlib import Path

from optkit import foreign, graph
from optkit.execute.step import Progress
from optkit.steps.bodies.signature import signature
from optkit.steps.dequantize import Dequantize, DequantizedGraph
from optkit.steps.file_names import GRAPH


def run(step: Dequantize, out: Path, progress: Progress) -> DequantizedGraph:
    progress("removing Q/DQ", 0.2)
    model = graph.load(step.graph.path / GRAPH)
    foreign.normal_form(model)
    relus = foreign.remove_quantization(model)
    graph.infer_shapes(model)
    graph.save(model, out / GRAPH)
    graph.check(out / GRAPH)
    return DequantizedGraph(relus=relus, **vars(signature(model)))
