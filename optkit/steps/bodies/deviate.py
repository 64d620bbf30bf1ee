from __future__ import annotations

from pathlib import Path

from optkit.benchmarking.sensitivity import record
from optkit.data.spool import Spool
from optkit.execute.step import Progress
from optkit.steps.bodies.sessions import cpu, simulated
from optkit.steps.deviate import Deviate, DeviationResult
from optkit.steps.file_names import GRAPH


def run(step: Deviate, out: Path, progress: Progress) -> DeviationResult:
    feeds = (feed for feed, _ in Spool(step.samples.path).batches(step.batch))
    with cpu(step.reference.path / GRAPH, level="basic") as reference:
        recorded = record(reference, feeds, samples=step.count)
    with simulated(step.graph.path / step.file, step.evidence) as candidate:
        return DeviationResult(deviation=recorded.deviation(candidate))
