"""Samples as graphs run on them: how many at once, and without the padding that nothing reads."""

from __future__ import annotations

from optkit.ground.data.shortening import token_axis
from optkit.ground.execute.runner import Steps
from optkit.road.pipeline.job import Build, calibration_of
from optkit.road.steps.collect import Samples
from optkit.road.steps.shorten import Shorten


def sample_batch(build: Build) -> int | None:
    """Samples per run of the graph; None if its batch size is fixed, and gives the number."""
    batch = calibration_of(build.job.recipe).batch
    return batch if isinstance(build.batch_axis, str) else None


def observed(build: Build, runner: Steps) -> Samples | None:
    """The calibration samples, without padding where it may be cut; None if there are none."""
    if build.observed is None and build.calibration is not None:
        build.observed = without_padding(build, build.calibration, runner)
    return build.observed


def without_padding(build: Build, samples: Samples, runner: Steps) -> Samples:
    """The samples by length, cut to the longest of a batch, if the model takes any length. They
    remain as long as the recipe's smallest size."""
    axis, batch = token_axis(build.inputs), sample_batch(build)
    sizes = build.job.recipe.axis_ranges().get(axis or "")
    if batch is None or sizes is None or sizes.min == sizes.max:
        return samples
    step = Shorten(
        samples=samples,
        batch=batch,
        tokens=max(sizes.min, 1),
        optional=tuple(build.job.recipe.optional_axes()),
        memory=runner.limits.memory_bytes // 4,
    )
    return runner.do(step, "sort samples by length")
