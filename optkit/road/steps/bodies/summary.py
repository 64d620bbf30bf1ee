from __future__ import annotations

from pathlib import Path

from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.summary import Summarize, SummaryResult


def run(step: Summarize, out: Path, progress: Progress) -> SummaryResult:
    place = step.model.path
    model = graph.load(place / GRAPH if place.is_dir() else place)
    graph.check_growth(model)
    return SummaryResult(summary=graph.summary(model, step.axes))
