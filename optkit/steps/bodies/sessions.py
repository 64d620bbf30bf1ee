"""How a step opens what it runs."""

from __future__ import annotations

from pathlib import Path

from optkit.evidence import Evidence
from optkit.execute.step import Input
from optkit.runtimes import Level, Session, SessionOptions, backend, simulator
from optkit.steps.sessions import Engines


def cpu(
    model: Path, *, threads: int | None = None, level: Level = "all", pooled: bool = True
) -> Session:
    # idle threads that spin take the cores from whoever else works on this machine
    options = SessionOptions(threads, spinning=False, level=level, pooled=pooled)
    return simulator().session(model, options)


def simulated(model: Path, evidence: Evidence) -> Session:
    """A simulation keeps Q/DQ as written; a measurement runs what users run."""
    return cpu(model, level="all" if evidence is Evidence.MEASURED else "basic")


def engine(running: Engines, name: str, folder: Input | None, kept: Path | None) -> Session:
    """The engine in the step's input of this name, on its device."""
    assert folder is not None
    place = folder.path / running.engines[name]
    return backend(running.backend).session(place, running.session.options(kept))
