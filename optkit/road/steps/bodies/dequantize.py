from __future__ import annotations

from pathlib import Path

from optkit.craft import foreign
from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.dequantize import Dequantize, DequantizedGraph
from optkit.road.steps.file_names import GRAPH


def run(step: Dequantize, out: Path, progress: Progress) -> DequantizedGraph:
    progress("removing Q/DQ", 0.2)
    model = graph.load(step.graph.path / GRAPH)
    foreign.normal_form(model)
    relus = foreign.remove_quantization(model)
    graph.infer_shapes(model)
    graph.save(model, out / GRAPH)
    graph.check(out / GRAPH)
    return DequantizedGraph(relus=relus, **vars(signature(model)))
