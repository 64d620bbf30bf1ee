from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from functools import reduce
from pathlib import Path

from optkit.craft import calibration
from optkit.facts.errors import InputRefused
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.local import trim
from optkit.ground.execute.resident_memory import resident
from optkit.ground.execute.step import Progress
from optkit.ground.statistics import Statistics, load, merge, save
from optkit.road.steps.bodies import calibrate_parts
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.bodies.taps import taps_of_families
from optkit.road.steps.calibrate import Calibrate, CalibrationResult
from optkit.road.steps.file_names import GRAPH, STATISTICS


def run(step: Calibrate, out: Path, progress: Progress) -> CalibrationResult:
    if step.parts:
        files = [part.path / STATISTICS for part in step.parts.values()]
        statistics = reduce(merge, [load(file) for file in files if file.exists()])
        save(statistics, out / STATISTICS)
        return _calibrated(statistics)
    spool = Spool(step.samples.path)
    feeds = calibration.SpooledFeeds(spool, step.batch, step.shard or (0, 1))
    if not feeds.samples and len(spool):
        return CalibrationResult()
    try:
        if step.planned_memory is None:
            statistics = _observed(step, feeds, progress)
        else:
            statistics = calibrate_parts.observed(step, progress)
    except InputRefused as error:
        if not step.tolerant:
            raise
        return CalibrationResult(failed=str(error))
    save(statistics, out / STATISTICS)
    found = _calibrated(statistics)
    return replace(found, warnings=()) if step.tolerant else found


def _observed(step: Calibrate, feeds: calibration.SpooledFeeds, progress: Progress) -> Statistics:
    """The statistics, from runs of the whole graph."""
    model = graph.load(step.graph.path / GRAPH)
    taps = taps_of_families(model, step.families, moments=step.moments)
    names = list(dict.fromkeys(name for tap in taps for name in tap.outputs))
    fills = calibration.fills(model, names)
    with tempfile.TemporaryDirectory() as folder:
        tapped = Path(folder) / GRAPH
        # in files next to the graph: the runtime maps them, and no copy is made
        graph.save(graph.expose(model, names, alone=True), tapped, inline_limit=0)
        del model
        trim()  # now, not after the peak, because nodes and values refer to each other
        with cpu(tapped, pooled=False) as session:
            free = step.memory - resident(os.getpid())
            return calibration.observe(
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


def _calibrated(statistics: Statistics) -> CalibrationResult:
    return CalibrationResult(
        values=len(statistics.values),
        samples=statistics.samples,
        warnings=tuple(statistics.warnings()),
    )
