from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import onnx_ir as ir

from optkit.craft import foreign
from optkit.craft.precision_cast import magnitude
from optkit.craft.precision_cast.cast import HALVES, to_half
from optkit.craft.precision_cast.kept_in_fp32 import dividends
from optkit.craft.precision_cast.simulation import simulate
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import Level
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.cast import Cast, MagnitudeSamples
from optkit.road.steps.file_names import GRAPH, SIMULATION
from optkit.road.steps.graph import Rewritten

_SAMPLES = 32  # on which the magnitudes of values are measured


def run(step: Cast, out: Path, progress: Progress) -> Rewritten:
    model = graph.load(step.graph.path / GRAPH)
    opset = HALVES[step.carrier].opset
    if model.opset_imports[""] < opset:
        model = graph.upgrade(model, opset)
    measure = None
    if step.samples is not None and step.measured is not None:
        measure = partial(_measured, step.samples.path, step.measured)
    progress("measuring values", 0.1)
    log = to_half(model, step.carrier, measure)
    progress("writing", 0.8)
    graph.save(model, out / GRAPH)
    graph.check(out / GRAPH)
    described = signature(model)
    simulate(model)
    graph.save(model, out / SIMULATION)
    warnings = () if step.unmeasured is None else (step.unmeasured,)
    return Rewritten(log=log.to_json(), warnings=warnings, **vars(described))


def _measured(samples: Path, how: MagnitudeSamples, model: ir.Model) -> magnitude.Magnitudes:
    """The magnitudes of the values of a graph on spooled samples."""
    measuring, outputs = magnitude.magnitude_graph(model, dividends(model))
    if not outputs:  # a model that contains only integers
        return magnitude.Magnitudes({}, how.what)
    with tempfile.TemporaryDirectory() as folder:
        # weights are mapped, not copied
        graph.save(measuring, Path(folder) / GRAPH, inline_limit=0)
        feeds = (feed for feed, _ in Spool(samples).batches(how.batch))
        # optimized, ONNX Runtime writes products of codes, which it does not have for FP8
        level: Level = "none" if foreign.is_quantized(model) else "all"
        with cpu(Path(folder) / GRAPH, level=level, pooled=False) as session:
            return magnitude.measure(session, feeds, outputs, samples=_SAMPLES, what=how.what)
