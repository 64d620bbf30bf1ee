"""The memory of a run, where a gate asks for it."""

from __future__ import annotations

from optkit.execute.runner import Steps
from optkit.pipeline.engines import kept
from optkit.pipeline.engines import running as running_engine
from optkit.pipeline.job import Build
from optkit.steps.peak import InProcess, MeasurePeak


def weigh(build: Build, runner: Steps) -> None:
    """Peak memory of a run, where a gate asks for it and the target is this machine: of the
    process on a CPU, of the device where an engine of its own runs there."""
    limits = build.job.recipe.gates.of(build.job.target.name)
    if limits.max_memory_bytes is None or not build.measured or build.traits.memory is None:
        return
    in_process = build.traits.memory == "process"
    running = None if in_process else running_engine(build, "candidate")
    step = MeasurePeak(
        samples=build.probe, graph=build.graph if in_process else None,
        engine=None if in_process else build.engine,
        running=running or InProcess(build.job.recipe.bench.threads), batch=build.batch or 1,
        host=build.machine, kept=kept(runner),
    )  # fmt: skip
    build.peak = runner.do(step, f"measure memory of {build.job.precision}")
