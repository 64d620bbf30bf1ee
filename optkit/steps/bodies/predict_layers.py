from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optkit import graph
from optkit.devices import target
from optkit.execute.step import Progress
from optkit.node_cost import NodeCost
from optkit.prediction.compiled import of_engine
from optkit.prediction.fitted import fitted
from optkit.prediction.work_time import of_each
from optkit.steps.attribute import AttributedTimes, LayerTimes, TimedLayer
from optkit.steps.bodies.nodes import nodes_of
from optkit.steps.file_names import GRAPH
from optkit.steps.predict_layers import PredictLayers


def run(step: PredictLayers, out: Path, progress: Progress) -> AttributedTimes:
    model = graph.load(step.candidate.path / GRAPH)
    costs = graph.costs(model, step.axes)
    candidate, nodes = _predicted(step, "candidate", costs), nodes_of(model, costs)
    model = graph.load(step.baseline.path / GRAPH)
    baseline = _predicted(step, "baseline", graph.costs(model, step.axes))
    return AttributedTimes(times=LayerTimes(candidate, baseline, nodes))


def _predicted(
    step: PredictLayers, side: str, costs: Mapping[str, NodeCost]
) -> tuple[TimedLayer, ...]:
    layers = step.layers[side]
    predicted = of_each(of_engine(layers, costs), target(step.device), fitted().efficiencies)
    return tuple(
        TimedLayer(
            layer, time.total * 1e3, time.compute * 1e3, time.memory * 1e3, time.launch * 1e3
        )
        for layer, time in zip(layers, predicted, strict=True)
    )
