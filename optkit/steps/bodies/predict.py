from __future__ import annotations

from pathlib import Path

from optkit import graph
from optkit.devices import target
from optkit.engines import FusedLayer
from optkit.execute.step import Progress
from optkit.prediction import roofline
from optkit.steps.files import GRAPH
from optkit.steps.predict import PredictedLatency, PredictLatency


def run(step: PredictLatency, out: Path, progress: Progress) -> PredictedLatency:
    model = graph.load(step.graph.path / GRAPH)
    costs, device = graph.costs(model, step.axes), target(step.device)
    layers = step.engine.static_layers if step.engine else ()
    if not layers or any(layer.bytes_moved is None or _hidden(layer) for layer in layers):
        bound = roofline.for_graph(
            costs, device, step.batch, step.planned, step.carrier,
            border=graph.border_bytes(model, step.axes),
        )  # fmt: skip
    else:
        bound = roofline.predict(layers, costs, device, step.batch)
    return PredictedLatency(latency=bound)


def _hidden(layer: FusedLayer) -> bool:
    """Whether it multiplies in what the compiler does not tell."""
    return bool(layer.products) and layer.dtype is None
