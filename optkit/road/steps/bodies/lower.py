from __future__ import annotations

from pathlib import Path

from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.file_names import GRAPH, SIMULATION
from optkit.road.steps.graph import Graph
from optkit.road.steps.lower import Lower


def run(step: Lower, out: Path, progress: Progress) -> Graph:
    for name in (SIMULATION, GRAPH):
        place = step.graph.path / name
        if not place.exists():
            continue
        model = graph.load(place)
        graph.lower(model, step.opset)
        graph.save(model, out / name)
        graph.check(out / name)
    return Graph(**vars(signature(model)))
