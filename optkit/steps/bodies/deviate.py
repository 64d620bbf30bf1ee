from __future__ import annotations

from pathlib import Path

from optkit.benchmarking.sensitivity import record
from optkit.data.spool import Spool
from optkit.execute.step import Progress
from optkit.steps.bodies.sessions import cpu, simulated
from optkit.steps.deviate import Deviate, Deviated
from optkit.steps.files import GRAPH


def run(step: Deviate, out: Path, progress: Progress) -> Deviated:
    feeds = (feed for feed, _ in Spool(step.samples.path).batches(step.batch))
    with cpu(step.reference.path / GRAPH, level="basic") as reference:
        recorded = record(reference, feeds, samples=step.count)
    with simulated(step.graph.path / step.file, step.evidence) as candidate:
        return Deviated(deviation=recorded.deviation(candidate))
