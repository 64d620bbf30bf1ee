from __future__ import annotations

from pathlib import Path

from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.road.steps.adopt import Adopt
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.graph import Graph


def run(step: Adopt, out: Path, progress: Progress) -> Graph:
    model = graph.load(step.model.path / GRAPH)
    graph.check_finite(model)
    graph.save(model, out / GRAPH)
    return Graph(**vars(signature(model)))
