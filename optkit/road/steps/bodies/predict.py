from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from optkit.craft.prediction import graph_work
from optkit.craft.prediction.call import call, latency
from optkit.craft.prediction.compiled import of_engine
from optkit.craft.prediction.fitted import fitted
from optkit.facts.engines import FusedLayer
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.execute.step import Progress
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.predict import PredictedLatency, PredictLatency


def run(step: PredictLatency, out: Path, progress: Progress) -> PredictedLatency:
    model = graph.load(step.graph.path / GRAPH)
    costs = graph.costs(model, step.axes)
    device = replace(target(step.device), card=step.card)
    compiled = step.engine.static_layers if step.engine else ()
    loops = any(cost.recurrence for cost in costs.values())  # engines list one turn of a loop
    of_layers = bool(compiled) and not loops and not any(map(_unclear, compiled))
    if not of_layers:
        number = step.precision
        works = graph_work.of_graph(
            costs, number, device, step.planned if number.quantized else None
        )
        known = graph_work.uncounted(costs)
        note = "from the graph: the compiler is assumed to fuse as it is documented to"
    else:
        works, known = of_engine(compiled, costs), graph_work.uncounted(costs)
        note = "from the layers of the compiled engine"
    one = call(works, device, step.batch, graph.border_bytes(model, step.axes), known=not known)
    if step.card is not None:
        note += f"; {step.card.told}"
    if known:
        note += f"; not fully counted: {', '.join(known)}"
    note = "; ".join((note, *fitted().doubts(one.kind)))
    return PredictedLatency(latency=latency(one, note), kind=one.kind, of_layers=of_layers)


def _unclear(layer: FusedLayer) -> bool:
    """Whether the layer has a size or multiplies in a type that the compiler does not report."""
    return layer.bytes_moved is None or (bool(layer.products) and layer.dtype is None)
