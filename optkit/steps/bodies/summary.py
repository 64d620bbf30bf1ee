from __future__ import annotations

from pathlib import Path

from optkit import graph
from optkit.execute.step import Progress
from optkit.steps.files import GRAPH
from optkit.steps.summary import Summarize, Summarized


def run(step: Summarize, out: Path, progress: Progress) -> Summarized:
    place = step.model.path
    model = graph.load(place / GRAPH if place.is_dir() else place)
    graph.check_growth(model)
    return Summarized(summary=graph.summary(model, step.axes))
