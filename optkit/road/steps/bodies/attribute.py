from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.craft.backends.landing import products
from optkit.craft.backends.onnxruntime import kernel_times
from optkit.facts.engines import FusedLayer
from optkit.facts.errors import ToolchainMissing
from optkit.facts.tensors import Feed, batch_axis
from optkit.facts.timed_layers import LayerTimes, TimedLayer
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress, StepInput
from optkit.ground.runtimes import ProfiledSession
from optkit.road.steps.attribute import Attribute, AttributedTimes, EngineProfile, Kernels
from optkit.road.steps.bodies.nodes import nodes_of
from optkit.road.steps.bodies.sessions import engine
from optkit.road.steps.file_names import GRAPH

Layers = tuple[TimedLayer, ...]


def run(step: Attribute, out: Path, progress: Progress) -> AttributedTimes:
    progress("timing the layers of the candidate", 0.0)
    model = graph.load(step.candidate.path / GRAPH)
    candidate = _timed(step, "candidate", step.candidate, step.candidate_engine, model)
    nodes = nodes_of(model, graph.costs(model, step.axes))
    progress("timing the layers of the baseline", 0.5)
    model = graph.load(step.baseline.path / GRAPH)
    baseline = _timed(step, "baseline", step.baseline, step.baseline_engine, model)
    return AttributedTimes(times=LayerTimes(candidate, baseline, nodes))


def _timed(
    step: Attribute, side: str, place: StepInput, built: StepInput | None, model: ir.Model
) -> Layers:
    way = step.way
    if isinstance(way, Kernels):
        feed = _feed(step, way)
        times = kernel_times(place.path / GRAPH, way.shapes, way.seconds, way.threads, feed)
    else:
        times = _engine_times(way, f"{side}_engine", built, step.kept, model)
    return tuple(TimedLayer(layer, ms) for layer, ms in times)


def _feed(step: Attribute, way: Kernels) -> Feed:
    """The first samples, as many as the batch; none without samples."""
    if step.samples is None:
        return {}
    samples = Spool(step.samples.path)
    batch = batch_axis(samples.inputs)
    if not isinstance(batch, str):
        return next(samples.batches(None))[0]
    first = next(info.name for info in samples.inputs if info.shape)
    return samples.feed(way.shapes[first][0])


def _engine_times(
    way: EngineProfile, name: str, built: StepInput | None, kept: Path | None, model: ir.Model
) -> list[tuple[FusedLayer, float]]:
    """Times of the engine's layers on zeros, as for the kernels of ONNX Runtime."""
    with engine(way, name, built, kept) as session:
        if not isinstance(session, ProfiledSession):
            raise ToolchainMissing(f"{way.backend} does not report the times of layers")
        feed = {t.name: np.zeros(way.shapes[t.name], t.dtype) for t in session.inputs}
        return session.layer_times(feed, products(model), way.seconds)
