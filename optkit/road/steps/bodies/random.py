from __future__ import annotations

from pathlib import Path

from optkit.ground.data import spool_writer
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.comparison import random_feed
from optkit.road.steps.collect import Samples
from optkit.road.steps.random import Random


def run(step: Random, out: Path, progress: Progress) -> Samples:
    drawn = step.random
    feeds = (random_feed(drawn, "opt", seed) for seed in range(8))
    written = spool_writer.write(
        feeds,
        out,
        [spec.info for spec in drawn.inputs],
        limit_samples=None,
        memory_bytes=1 << 28,
        progress=progress,
        optional=[name for name, axis in drawn.axes.items() if not axis.min],
    )
    return Samples(info=written)
