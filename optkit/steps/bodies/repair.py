from __future__ import annotations

from pathlib import Path

from optkit import foreign, graph
from optkit.execute.step import Progress
from optkit.steps.bodies.signature import signature
from optkit.steps.file_names import GRAPH
from optkit.steps.repair import RepairedGraph, RepairGraph


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
