from __future__ import annotations

from pathlib import Path

from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import backend
from optkit.road.steps.compile import Compile, CompiledEngine
from optkit.road.steps.file_names import GRAPH


def run(step: Compile, out: Path, progress: Progress) -> CompiledEngine:
    chosen = backend(step.backend)
    chosen.check()
    model, planned = step.graph.path / GRAPH, dict(step.planned)
    return CompiledEngine(
        engine=chosen.compile(model, step.spec, planned, out, progress, step.kept)
    )
