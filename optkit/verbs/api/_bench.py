"""`bench` and `evaluate`: figures of a model without an artifact, from the store that `build`
uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optkit.craft.benchmarking import paired_drop, sweep
from optkit.facts.documents.model_figures import (
    BENCH,
    EVAL,
    BatchSpeedup,
    BenchFigures,
    EvalFigures,
    Sweep,
)
from optkit.facts.errors import UsageError
from optkit.facts.measurement import Latency
from optkit.facts.precisions import Precision
from optkit.facts.request import Request
from optkit.facts.tensors import AxisRange
from optkit.ground.devices import Target
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.jobs import RecipeLike
from optkit.road.pipeline import Build, Job, judged_build
from optkit.road.pipeline.scores import task_scores
from optkit.road.pipeline.size_findings import declared_sizes


def bench(
    model: Request | str | Path | None = None,
    *,
    target: str | Target,
    precision: str | Precision = "int8",
    recipe: RecipeLike | None = None,
    batches: Sequence[int] = (),
    limit_ms: float | None = None,
    strict: bool = False,
    workspace: Workspace = Workspace(),
) -> BenchFigures:
    """Latency, latency of the baseline, and speedup per batch size, each with its evidence.

    model, target, precision, recipe: as for `build`.
    batches: batch sizes instead of the recipe's.
    limit_ms: a limit for one call, in milliseconds; the result names the best batch within it.
    strict: a latency that was measured under bad conditions is measured once more.

    Raises UsageError
    for a batch size for which the model is not built, ToolchainMissing if latency can be neither
    measured nor predicted here, and what building raises.
    """
    runner = workspace.runner()
    settings = jobs.settings(model, recipe, runner)
    if batches:
        settings = settings.with_overrides([f"bench.batches={sorted(set(batches))}"])
    job = Job(settings, *jobs.pair(target, precision), strict=strict, code=Path.cwd())
    pipeline.check_timed(job)
    if batches:
        _check_batches(batches, pipeline.run(job, runner, pipeline.EXPORT))
    build = pipeline.run(job, runner, pipeline.BENCH)
    times = judged_build.latencies(build)
    ratios = judged_build.speedups(build, times)
    return BenchFigures(
        schema=BENCH,
        status="ok",
        model=job.recipe.name,
        target=job.target.name,
        precision=job.precision.name,
        baseline=build.baseline_precision.name,
        latency=tuple(times.engine),
        baseline_latency=tuple(times.baseline),
        speedup=tuple(BatchSpeedup(batch=n, **vars(ratio)) for n, ratio in ratios.items()),
        sweep=_sweep(times.engine, limit_ms),
        conditions=judged_build.conditions(build),
    )


def evaluate(
    model: Request | str | Path | None = None,
    *,
    target: str | Target,
    precision: str | Precision = "int8",
    recipe: RecipeLike | None = None,
    strict: bool = False,
    workspace: Workspace = Workspace(),
) -> EvalFigures:
    """Task score, drop against the baseline, fidelity to FP32, and the gates on these figures.

    model, target, precision, recipe: as for `build`. strict: a model without trained weights is
    refused.

    Raises what building raises.
    """
    runner = workspace.runner()
    settings = jobs.settings(model, recipe, runner)
    job = Job(settings, *jobs.pair(target, precision), strict=strict, code=Path.cwd())
    build = pipeline.run(job, runner, pipeline.EVAL)
    scores = task_scores(build)
    drop = paired_drop.drop(*scores.pair) if scores.pair else None
    gate = judged_build.judge_accuracy(build, scores)
    return EvalFigures(
        schema=EVAL,
        status="gate_failed" if gate.verdict == "fail" else "ok",
        model=job.recipe.name,
        target=job.target.name,
        precision=job.precision.name,
        baseline=build.baseline_precision.name,
        accuracy=scores.candidate,
        baseline_accuracy=scores.baseline,
        drop=drop,
        fidelity=judged_build.fidelity(build),
        gate=gate,
        calibration=judged_build.calibration(build),
        sizes=declared_sizes(build),
    )


def _check_batches(batches: Sequence[int], build: Build) -> None:
    """Raises UsageError for a batch size for which nothing is built, or that is not measured."""
    span = build.batches or AxisRange(1, 1, 1)
    for batch in batches:
        if not span.min <= batch <= span.max:
            raise UsageError(
                f"it is built for batches of {span.min} to {span.max}",
                where=f"--batch {batch}",
                hint="widen the axis: --max-shapes, or `axes` in the recipe",
            )
        if not build.measured and batch != span.opt:
            raise UsageError(
                f"{build.job.target.name} is not this machine: only the tuned batch {span.opt} is "
                "predicted",
                where=f"--batch {batch}",
                hint="`optkit plan --batch` predicts others",
            )


def _sweep(latencies: Sequence[Latency], limit_ms: float | None) -> Sweep:
    return Sweep(
        knee=sweep.knee(latencies) if len(latencies) > 2 else None,
        limit_ms=limit_ms,
        best_under_limit=None if limit_ms is None else sweep.best_under(latencies, limit_ms),
    )
