from __future__ import annotations

from pathlib import Path

from optkit.craft.benchmarking import sequential
from optkit.ground.data import spool, spool_writer
from optkit.ground.execute.step import Progress
from optkit.road.steps.collect import Samples
from optkit.road.steps.draw import Draw


def run(step: Draw, out: Path, progress: Progress) -> Samples:
    samples = spool.Spool(step.samples.path)
    numbers = sequential.order(len(samples))[step.start : step.stop]
    written = spool_writer.write(
        samples.chosen(numbers.tolist()),
        out,
        samples.inputs,
        limit_samples=None,
        memory_bytes=step.memory,
        progress=progress,
        optional=step.optional,
        fill=True,
    )
    return Samples(info=written)
