from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optkit.craft import foreign
from optkit.facts.assignment import Assignment
from optkit.facts.documents.given_graph import AskedProduct
from optkit.facts.documents.report import GIVEN
from optkit.facts.precisions import PRECISIONS
from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.file_names import GRAPH, SIMULATION
from optkit.road.steps.import_quantized import ImportQuantized
from optkit.road.steps.quantize import QuantizationResult


def run(step: ImportQuantized, out: Path, progress: Progress) -> QuantizationResult:
    progress("reading codes and scales", 0.2)
    model = graph.load(step.graph.path / GRAPH)
    graph.save(model, out / GRAPH)
    simulation = step.graph.path / SIMULATION
    read = graph.load(simulation) if simulation.exists() else model
    products, log = foreign.requested_products(read), _log(foreign.ranges(read))
    if read is not model:
        foreign.floats_for_float_codes(read)
        graph.save(read, out / SIMULATION)
    return QuantizationResult(
        log=log,
        assignment=Assignment(
            {
                one.node: PRECISIONS[one.precision] if one.precision else step.carrier
                for one in products
            },
            {one.node: _reason(one) for one in products if one.precision is None},
        ),
        **vars(signature(model)),
    )


def _log(ranges: Mapping[str, tuple[str, float, float]]) -> dict[str, object]:
    """The facts of the report about activations, in the form of the log of optkit's quantization
    (`quantization.qdq.apply.QuantLog`)."""
    return {
        "nodes": {node: {"activation": source} for node, (source, _, _) in ranges.items()},
        "activations": {
            source: {"low": low, "high": high, "method": GIVEN}
            for source, low, high in ranges.values()
        },
    }


def _reason(product: AskedProduct) -> str:
    if product.weight is None:
        return "the tool that quantized the graph left its weight in floats"
    read = "floats" if product.activation is None else product.activation.dtype
    return f"{product.weight.dtype} weights with {read} activations are no precision of optkit"
