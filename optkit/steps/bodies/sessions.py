"""Sessions of the models that steps run."""

from __future__ import annotations

from pathlib import Path

from optkit.evidence import Evidence
from optkit.execute.step import Input
from optkit.runtimes import Level, Session, SessionOptions, backend, simulator
from optkit.steps.sessions import Engines


def cpu(
    model: Path, *, threads: int | None = None, level: Level = "all", pooled: bool = True
) -> Session:
    # idle threads that spin take cores from other processes on this machine
    options = SessionOptions(threads, spinning=False, level=level, pooled=pooled)
    return simulator().session(model, options)


def simulated(model: Path, evidence: Evidence) -> Session:
    """A session on the CPU. For a measurement the graph is fully optimized, as users run it. For a
    simulation the level is `basic`, which keeps Q/DQ as written."""
    return cpu(model, level="all" if evidence is Evidence.MEASURED else "basic")


def engine(running: Engines, name: str, folder: Input | None, kept: Path | None) -> Session:
    """A session of the engine in the step's input of this name, on its device."""
    assert folder is not None
    place = folder.path / running.engines[name]
    return backend(running.backend).session(place, running.session.options(kept))
