from __future__ import annotations

from pathlib import Path

from optkit.execute.step import Progress, StepResult
from optkit.runtimes import backend
from optkit.steps.accept import Accept
from optkit.steps.file_names import GRAPH


def run(step: Accept, out: Path, progress: Progress) -> StepResult:
    backend(step.backend).accept(step.graph.path / GRAPH)
    return StepResult()
