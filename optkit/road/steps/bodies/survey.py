from __future__ import annotations

from pathlib import Path

from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.weighted_nodes import uncast
from optkit.facts.assignment import Scheme
from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.ground.statistics import load
from optkit.road.steps.file_names import GRAPH, STATISTICS
from optkit.road.steps.survey import ListLayers, QuantizableLayer, QuantizableLayers


def run(step: ListLayers, out: Path, progress: Progress) -> QuantizableLayers:
    statistics = load(step.statistics.path / STATISTICS) if step.statistics is not None else None
    model = graph.load(step.graph.path / GRAPH)
    assignments = {
        one: assign(model, Scheme(one, step.carrier, {one: rules}), statistics)
        for one, rules in step.rules.items()
    }
    costs = graph.costs(model, step.axes)
    layers = []
    for node in model.graph:
        name = str(node.name)
        able = [p for p, assigned in assignments.items() if name in assigned.quantized()]
        if able and node.inputs[0] is not None:
            reads = str(uncast(node.inputs[0]).name)
            layers.append(QuantizableLayer(name, reads, costs[name], tuple(able)))
    named = {layer.node for layer in layers}
    reasons = {
        node: why for assigned in assignments.values() for node, why in assigned.reasons.items()
    }
    return QuantizableLayers(
        layers=tuple(layers), reasons={n: why for n, why in reasons.items() if n not in named}
    )
