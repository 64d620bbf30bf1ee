"""Sessions of the models that steps run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx_ir as ir

from optkit.facts.evidence import Evidence
from optkit.ground import graph
from optkit.ground.execute.step import StepInput
from optkit.ground.runtimes import Level, Session, SessionOptions, backend, simulator
from optkit.road.steps.bodies.float_weights import dequantize_weights
from optkit.road.steps.evaluate import RunsTask
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.outputs import KeepOutputs
from optkit.road.steps.sessions import Engines


def cpu(
    model: Path, *, threads: int | None = None, level: Level = "all", pooled: bool = True
) -> Session:
    # idle threads that spin take cores from other processes on this machine
    options = SessionOptions(threads, spinning=False, level=level, pooled=pooled)
    return simulator().session(model, options)


def simulated(model: Path, evidence: Evidence) -> Session:
    """A session on the CPU. For a measurement the graph is fully optimized, as users run it. For a
    simulation the level is `basic`, which keeps Q/DQ as written; only the weights are computed
    once, before the first run."""
    if evidence is Evidence.MEASURED:
        return cpu(model, level="all")
    loaded = graph.load(model)
    return folded(loaded, "basic") if dequantize_weights(loaded) else cpu(model, level="basic")


def folded(model: ir.Model, level: Level, *, pooled: bool = True) -> Session:
    """A session of a graph in memory, with the values of its weights in place of their codes."""
    dequantize_weights(model)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        graph.save(model, place, inline_limit=0)  # the runtime maps weights
        return cpu(place, level=level, pooled=pooled)


def opened(step: RunsTask | KeepOutputs) -> Session:
    """A session of the only engine that runs instead of the graph; without it, of the graph in ONNX
    Runtime."""
    if step.running is None:
        return simulated(step.graph.path / step.file, step.evidence)
    (name,) = step.running.engines
    return engine(step.running, name, step.engine or step.baseline_engine, step.kept)


def engine(running: Engines, name: str, folder: StepInput | None, kept: Path | None) -> Session:
    """A session of the engine in the step's input of this name, on its device."""
    assert folder is not None
    place = folder.path / running.engines[name]
    return backend(running.backend).session(place, running.session.options(kept))
