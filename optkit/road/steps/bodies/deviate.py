from __future__ import annotations

from pathlib import Path

from optkit.craft.benchmarking.sensitivity import record
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.sessions import cpu, simulated
from optkit.road.steps.deviate import Deviate, DeviationResult
from optkit.road.steps.file_names import GRAPH


def run(step: Deviate, out: Path, progress: Progress) -> DeviationResult:
    feeds = (feed for feed, _ in Spool(step.samples.path).batches(step.batch))
    with cpu(step.reference.path / GRAPH, level="basic") as reference:
        recorded = record(reference, feeds, samples=step.count)
    with simulated(step.graph.path / step.file, step.evidence) as candidate:
        return DeviationResult(deviation=recorded.deviation(candidate))
