from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import onnx_ir as ir

from optkit.craft.calibration.segments import Segments, feed_size
from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.in_order import Errors, compensate, crossing, groups
from optkit.craft.quantization.numerics.qparams import QParams
from optkit.craft.quantization.placement.assign import assign
from optkit.facts.assignment import Assignment
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.resident_memory import resident
from optkit.ground.execute.step import Progress
from optkit.ground.statistics import Statistics, load
from optkit.road.steps.bodies.quantize import write
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.file_names import GRAPH, STATISTICS
from optkit.road.steps.quantize import QuantizationResult
from optkit.road.steps.quantize_in_order import QuantizeInOrder


def run(step: QuantizeInOrder, out: Path, progress: Progress) -> QuantizationResult:
    fused = graph.load(step.fused.path / GRAPH)
    assignment, statistics, qparams = solve(step, fused, progress)
    return write(step, qparams, assignment, statistics, out)


def solve(
    step: QuantizeInOrder, fused: ir.Model, progress: Progress
) -> tuple[Assignment, Statistics, QParams]:
    """The assignment, the statistics with the inputs that the quantized products give, and all
    numbers. The graph gets the float weights that make up for the errors, in place."""
    assert step.statistics is not None
    statistics = load(step.statistics.path / STATISTICS)
    scheme, own = step.scheme, step.settings
    assignment = assign(fused, scheme, statistics, own.settings.nodes)
    found = groups(fused, assignment, statistics, scheme.rules)
    choose = partial(
        choose_qparams,
        rules=scheme.rules,
        settings=own.settings,
        method=own.method,
        percentile=own.percentile,
        carrier=scheme.dtype,
    )
    samples = Spool(step.samples.path)
    names = {name for border in crossing(fused, found) for name in border}
    with tempfile.TemporaryDirectory() as folder:
        segments = Segments(
            samples,
            feed_size(fused, names, samples, step.batch),
            lambda: max(step.memory - resident(os.getpid()), 0),
            Path(folder),
        )
        made = compensate(
            fused,
            statistics,
            assignment,
            found,
            choose=choose,
            advance=partial(_advance, segments),
            progress=lambda what, share: progress(what, share * 0.9),
        )
    numbers = choose(fused, assignment, made.statistics, known=made.qparams)
    return assignment, made.statistics, numbers


def _advance(
    segments: Segments, segment: ir.Model, left: Sequence[str], channels: int
) -> Errors | None:
    errors, *_ = (str(value.name) for value in segment.graph.outputs)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        graph.save(segment, place, inline_limit=0)  # the runtime maps weights
        with cpu(place, pooled=False) as session:
            return segments.advance(session, left, errors, channels)
