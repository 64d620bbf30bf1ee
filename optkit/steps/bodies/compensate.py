from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

import onnx_ir as ir

from optkit import calibration, graph
from optkit.data.spool import Spool
from optkit.execute.local import trim
from optkit.execute.process_tree import resident
from optkit.execute.step import Progress
from optkit.quantization.choose_qparams import choose_qparams
from optkit.quantization.in_order import compensate, groups
from optkit.quantization.placement.assign import assign
from optkit.statistics import Moments, Tap, load, save
from optkit.steps.bodies.sessions import cpu
from optkit.steps.bodies.signature import signature
from optkit.steps.compensate import Compensate
from optkit.steps.files import GRAPH, STATISTICS
from optkit.steps.fuse import Fused


def run(step: Compensate, out: Path, progress: Progress) -> Fused:
    model = graph.load(step.graph.path / GRAPH)
    statistics = load(step.statistics.path / STATISTICS)
    scheme, own = step.scheme, step.settings
    assignment = assign(model, scheme, statistics, own.settings.nodes)
    found = groups(model, assignment, statistics, scheme.rules)
    choose = partial(
        choose_qparams, rules=scheme.rules, settings=own.settings, method=own.method,
        percentile=own.percentile, carrier=scheme.dtype,
    )  # fmt: skip
    changed = compensate(
        model, statistics, assignment, found, choose=choose, observe=partial(_observed, step),
        progress=progress,
    )  # fmt: skip
    graph.save(model, out / GRAPH)
    save(changed, out / STATISTICS)
    nodes = [name for group in found for name in group.nodes]
    return Fused(log={"compensated": nodes}, max_error=None, **signature(model)._asdict())


def _observed(step: Compensate, model: ir.Model) -> Moments | None:
    """The second moments of the output of the graph over all samples."""
    (output,) = (str(value.name) for value in model.graph.outputs)
    feeds = calibration.SpooledFeeds(Spool(step.samples.path), step.batch)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        graph.save(model, place, inline_limit=0)  # the runtime maps weights
        trim()
        with cpu(place, pooled=False) as session:
            free = step.memory - resident(os.getpid())
            tap = Tap(output, channel_axis=-1, moments=True)
            seen = calibration.observe(
                session, feeds, [tap], memory_bytes=max(free // 2, 0), progress=_quiet,
            )  # fmt: skip
    return seen.value(output).moments


def _quiet(what: str, fraction: float) -> None: ...
