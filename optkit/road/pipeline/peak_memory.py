"""The peak memory of a run, if a gate limits it."""

from __future__ import annotations

from optkit.ground.execute.runner import Steps
from optkit.road.pipeline.compilation import kept
from optkit.road.pipeline.compilation import running as running_engine
from optkit.road.pipeline.job import Build
from optkit.road.steps.peak import InProcess, MeasurePeak


def weigh(build: Build, runner: Steps) -> None:
    """Measure the peak memory of a run, if a gate limits it and the target is this machine: the
    memory of the process on a CPU, the memory of the device for an engine."""
    limits = build.job.recipe.gates.of(build.job.target.name)
    if limits.max_memory_bytes is None or not build.measured or build.traits.memory is None:
        return
    in_process = build.traits.memory == "process"
    running = None if in_process else running_engine(build, "candidate")
    step = MeasurePeak(
        samples=build.probe,
        graph=build.graph if in_process else None,
        engine=None if in_process else build.engine,
        running=running or InProcess(build.job.recipe.bench.threads),
        batch=build.batch or 1,
        host=build.machine,
        kept=kept(runner),
    )
    build.peak = runner.do(step, f"measure memory of {build.job.precision}")
