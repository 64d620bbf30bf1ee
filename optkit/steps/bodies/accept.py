from __future__ import annotations

from pathlib import Path

from optkit.execute.step import Progress, Result
from optkit.runtimes import backend
from optkit.steps.accept import Accept
from optkit.steps.files import GRAPH


def run(step: Accept, out: Path, progress: Progress) -> Result:
    backend(step.backend).accept(step.graph.path / GRAPH)
    return Result()
