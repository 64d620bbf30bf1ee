from __future__ import annotations

from pathlib import Path

from optkit import foreign, graph
from optkit.execute.step import Progress
from optkit.steps.bodies.signature import signature
from optkit.steps.files import GRAPH
from optkit.steps.repair import (
    DoneRepair,
    OperandCodes,
    RepairedGraph,
    RepairGraph,
    RequestedProduct,
    Tool,
)


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
        tool=Tool(producer.name, producer.version, producer.recognized_by),
        products=tuple(map(_product, requested)),
        repairs=tuple(DoneRepair(one.name, one.text, one.exact, one.nodes) for one in repairs),
        left=tuple(foreign.integer_operators(model)),
        assignment=foreign.assignment(model),
        **signature(model)._asdict(),
    )


def _product(one: foreign.Product) -> RequestedProduct:
    return RequestedProduct(
        one.node, one.op, _codes(one.weight), _codes(one.activation), one.precision
    )


def _codes(one: foreign.Format | None) -> OperandCodes | None:
    return None if one is None else OperandCodes(one.dtype, one.granularity, one.symmetric)
