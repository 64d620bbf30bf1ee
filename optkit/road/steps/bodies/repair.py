from __future__ import annotations

from pathlib import Path

from optkit.craft import foreign
from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.repair import RepairedGraph, RepairGraph


def run(step: RepairGraph, out: Path, progress: Progress) -> RepairedGraph:
    progress("reading what was asked", 0.1)
    file = step.file.path
    producer = foreign.producer_of(graph.load(file / GRAPH if file.is_dir() else file))
    model = graph.load(step.graph.path / GRAPH)
    quantized = foreign.is_quantized(model)
    requested = foreign.requested_products(model)
    progress("repairing", 0.4)
    repairs = foreign.repair(model, foreign.FORMS if step.forms_only else foreign.REPAIRS)
    graph.infer_shapes(model)
    graph.save(model, out / GRAPH)
    graph.check(out / GRAPH)
    return RepairedGraph(
        quantized=quantized,
        tool=producer,
        products=tuple(requested),
        repairs=repairs,
        left=tuple(foreign.integer_operators(model)),
        assignment=foreign.assignment(model),
        **vars(signature(model)),
    )
