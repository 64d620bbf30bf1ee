from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import onnx_ir as ir

from optkit.craft import calibration
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.qdq.insertion import taps as taps_of
from optkit.facts.assignment import Scheme
from optkit.facts.errors import InputRefused
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.local import trim
from optkit.ground.execute.resident_memory import resident
from optkit.ground.execute.step import Progress
from optkit.ground.statistics import Statistics, Tap, load, merge, merged_taps, save
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.calibrate import Calibrate, CalibrationResult
from optkit.road.steps.file_names import GRAPH, STATISTICS


def run(step: Calibrate, out: Path, progress: Progress) -> CalibrationResult:
    if step.parts:
        files = [part.path / STATISTICS for part in step.parts.values()]
        statistics = reduce(merge, [load(file) for file in files if file.exists()])
        save(statistics, out / STATISTICS)
        return _calibrated(statistics)
    samples = Spool(step.samples.path)
    feeds = calibration.SpooledFeeds(samples, step.batch, step.shard or (0, 1))
    if not feeds.samples and len(samples):
        return CalibrationResult()
    model = graph.load(step.graph.path / GRAPH)
    taps = taps_of_families(model, step.families, moments=step.moments)
    names = [tap.name for tap in taps]
    fills = calibration.fills(model, names)
    with tempfile.TemporaryDirectory() as folder:
        tapped = Path(folder) / GRAPH
        # in files next to the graph: the runtime maps them, and no copy is made
        graph.save(graph.expose(model, names, alone=True), tapped, inline_limit=0)
        del model
        trim()  # now, not after the peak, because nodes and values refer to each other
        try:
            with cpu(tapped, pooled=False) as session:
                free = step.memory - resident(os.getpid())
                statistics = calibration.observe(
                    session,
                    feeds,
                    taps,
                    # half, because the runtime also holds inner values, and the samples are mapped
                    memory_bytes=max(free // 2, 0),
                    progress=progress,
                    fills=fills,
                    first=feeds.first,
                    total=feeds.samples,
                    checkpoint=step.checkpoint,
                )
        except InputRefused as error:
            if not step.tolerant:
                raise
            return CalibrationResult(failed=str(error))
    save(statistics, out / STATISTICS)
    found = _calibrated(statistics)
    return replace(found, warnings=()) if step.tolerant else found


def taps_of_families(
    model: ir.Model, families: Sequence[Mapping[Precision, PlacementRules]], *, moments: bool
) -> list[Tap]:
    """What to observe, so that every precision of every backend family can be quantized."""
    taps = []
    for rules in families:
        for precision in rules:
            # also of islands that do not pay: a recipe may name their nodes
            every = {name: replace(one, kernels=None) for name, one in rules.items()}
            assignment = assign(model, Scheme(precision, "fp32", every))
            taps += taps_of(model, assignment, rules, moments=moments)
    return merged_taps(taps)


def _calibrated(statistics: Statistics) -> CalibrationResult:
    return CalibrationResult(
        values=len(statistics.values),
        samples=statistics.samples,
        warnings=tuple(statistics.warnings()),
    )
