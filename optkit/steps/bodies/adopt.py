from __future__ import annotations

from pathlib import Path

from optkit import graph
from optkit.execute.step import Progress
from optkit.steps.adopt import Adopt
from optkit.steps.bodies.signature import signature
from optkit.steps.file_names import GRAPH
from optkit.steps.graph import Graph


def run(step: Adopt, out: Path, progress: Progress) -> Graph:
    model = graph.load(step.model.path / GRAPH)
    graph.check_finite(model)
    graph.save(model, out / GRAPH)
    return Graph(**vars(signature(model)))
