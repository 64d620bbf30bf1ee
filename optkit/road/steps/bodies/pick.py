from __future__ import annotations

from pathlib import Path

from optkit.ground.data import spool, spool_writer
from optkit.ground.execute.step import Progress
from optkit.road.steps.collect import Samples
from optkit.road.steps.pick import Pick


def run(step: Pick, out: Path, progress: Progress) -> Samples:
    samples = spool.Spool(step.samples.path)
    written = spool_writer.write(
        samples.varied(step.most),
        out,
        samples.inputs,
        limit_samples=None,
        memory_bytes=step.memory,
        progress=progress,
        optional=step.optional,
    )
    return Samples(info=written)
