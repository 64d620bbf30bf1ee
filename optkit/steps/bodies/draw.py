from __future__ import annotations

from pathlib import Path

from optkit.benchmarking import sequential
from optkit.data import spool, spool_writer
from optkit.execute.step import Progress
from optkit.steps.collect import Samples
from optkit.steps.draw import Draw


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
