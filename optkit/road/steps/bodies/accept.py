from __future__ import annotations

from pathlib import Path

from optkit.ground.execute.step import Progress, StepResult
from optkit.ground.runtimes import backend
from optkit.road.steps.accept import Accept
from optkit.road.steps.file_names import GRAPH


def run(step: Accept, out: Path, progress: Progress) -> StepResult:
    backend(step.backend).accept(step.graph.path / GRAPH)
    return StepResult()
