from __future__ import annotations

import tempfile
from pathlib import Path

from optkit.craft.benchmarking.sensitivity import record
from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.qdq import insertion as qdq
from optkit.facts.assignment import Assignment
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress
from optkit.ground.statistics import load
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.file_names import GRAPH, STATISTICS
from optkit.road.steps.sensitivity import MeasureSensitivity, Sensitivities


def run(step: MeasureSensitivity, out: Path, progress: Progress) -> Sensitivities:
    path, groups, precision = step.graph.path / GRAPH, step.groups, step.scheme.precision
    statistics = load(step.statistics.path / STATISTICS) if step.statistics is not None else None
    rules, dtype = step.scheme.rules, step.scheme.dtype
    progress("finding scales and codes", 0.0)
    qparams = choose_qparams(
        graph.load(path),
        Assignment({node: precision for group in groups for node in group}),
        statistics,
        rules,
        step.settings,
        method=step.method,
        percentile=step.percentile,
        carrier=dtype,
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder, cpu(path, level="basic") as reference:
        feeds = (feed for feed, _ in Spool(step.samples.path).batches(step.batch))
        recorded = record(reference, feeds, samples=step.count)
        for index, group in enumerate(groups):
            progress(f"layer {index + 1} of {len(groups)}", index / len(groups))
            variant = graph.load(path)
            alone = Assignment(dict.fromkeys(group, precision))
            qdq.apply(variant, qparams, alone, rules, statistics, scale_dtype=dtype, simulated=True)
            graph.save(variant, Path(folder) / GRAPH)
            with cpu(Path(folder) / GRAPH, level="basic") as candidate:
                rows.append(recorded.deviation(candidate))
    return Sensitivities(rows=tuple(rows))
