from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from optkit.craft.prediction.call import copies
from optkit.craft.prediction.compiled import of_engine
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.work_time import of_each
from optkit.facts.node_cost import NodeCost
from optkit.facts.timed_layers import LayerTimes, TimedLayer
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.execute.step import Progress
from optkit.road.steps.attribute import AttributedTimes
from optkit.road.steps.bodies.nodes import nodes_of
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.predict_layers import PredictLayers


def run(step: PredictLayers, out: Path, progress: Progress) -> AttributedTimes:
    model = graph.load(step.candidate.path / GRAPH)
    costs = graph.costs(model, step.axes)
    candidate, nodes = _predicted(step, "candidate", costs), nodes_of(model, costs)
    copied = copies(target(step.device), graph.border_bytes(model, step.axes))
    model = graph.load(step.baseline.path / GRAPH)
    baseline = _predicted(step, "baseline", graph.costs(model, step.axes))
    milliseconds = None if copied is None else copied * 1e3
    return AttributedTimes(times=LayerTimes(candidate, baseline, nodes, milliseconds))


def _predicted(
    step: PredictLayers, side: str, costs: Mapping[str, NodeCost]
) -> tuple[TimedLayer, ...]:
    layers = step.layers[side]
    device = replace(target(step.device), card=step.card)
    predicted = of_each(of_engine(layers, costs), device, fitted().efficiencies)
    return tuple(
        TimedLayer(
            layer, time.total * 1e3, time.compute * 1e3, time.memory * 1e3, time.launch * 1e3
        )
        for layer, time in zip(layers, predicted, strict=True)
    )
