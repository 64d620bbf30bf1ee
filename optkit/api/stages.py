"""The road as far as one stage (`export`, `fuse`, `quantize`, `compile`) or one figure (`bench`,
`evaluate`), through the same store as `build`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optkit import pipeline
from optkit.api import request
from optkit.errors import ToolchainMissing, UsageError
from optkit.execute.runner import Runner
from optkit.measurement import Latency
from optkit.pipeline import Build, Job
from optkit.recipe import Recipe
from optkit.tensors import AxisRange


def export(model: str | Path | None = None, **options: Any) -> Path:
    """MODEL to ONNX in a new folder `out`. options: recipe, out, cache, remote, memory,
    listener."""
    return _stage("export", model, **options)


def fuse(model: str | Path | None = None, **options: Any) -> Path:
    """MODEL to its fused `standard` form in a new folder. Options as for `export`."""
    return _stage("fuse", model, **options)


def quantize(model: str | Path | None = None, **options: Any) -> Path:
    """MODEL to a Q/DQ graph in a new folder. options: target, precision, and those of `export`."""
    return _stage("quantize", model, **options)


def compile(model: str | Path | None = None, **options: Any) -> Path:
    """MODEL to an engine in a new folder. Options as for `quantize`."""
    return _stage("compile", model, **options)


def bench(
    model: str | Path | None = None,
    *,
    batches: Sequence[int] = (),
    limit_ms: float | None = None,
    strict: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Latency and speedup per batch size, each with its evidence, and the sweep's knee.

    batches: sizes instead of the recipe's. limit_ms: on one call, to name the best batch by.
    strict: measured once more where conditions were bad. options: target, precision, recipe, cache,
    remote, memory, listener. Raises UsageError for a batch that the model is not built for.
    """
    return _figured("bench", model, batches=batches, limit_ms=limit_ms, strict=strict, **options)


def evaluate(model: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Accuracy, drop and fidelity, each with its evidence. Options as for `bench`."""
    return _figured("eval", model, **options)


def _stage(
    stage: str,
    model: str | Path | None,
    *,
    out: str | Path,
    recipe: str | Path | Mapping[str, Any] | None = None,
    target: str = "cpu",
    precision: str = "fp32",
    **limits: Any,
) -> Path:
    settings = request.resolve(None if model is None else str(model), recipe=recipe)
    files(
        stage, recipe=settings, target=target, precision=precision, out=Path(out),
        runner=request.open_runner(**limits),
    )  # fmt: skip
    return Path(out)


def _figured(
    stage: str,
    model: str | Path | None,
    *,
    target: str,
    recipe: str | Path | Mapping[str, Any] | None = None,
    precision: str = "int8",
    batches: Sequence[int] = (),
    limit_ms: float | None = None,
    strict: bool = False,
    **limits: Any,
) -> dict[str, Any]:
    settings = request.resolve(None if model is None else str(model), recipe=recipe)
    return figures(
        stage,
        recipe=settings,
        target=target,
        precision=precision,
        runner=request.open_runner(**limits),
        batches=batches,
        limit_ms=limit_ms,
        strict=strict,
    )


_STAGES = {
    "export": (pipeline.EXPORT, "source"),
    "fuse": (pipeline.FUSE, "fused"),
    "quantize": (pipeline.QUANTIZE, "graph"),
    "compile": (pipeline.COMPILE, "engine"),
}


def files(
    stage: str, *, recipe: Recipe, target: str, precision: str, out: Path, runner: Runner
) -> dict[str, Any]:
    """Run the chain up to `stage` and put what it made into `out`, which must not exist yet.

    Returns {"out", "files", "notes", "details", "calibration"}, the last as in a build's result.
    Raises UsageError when `out` exists.
    """
    from optkit.pipeline import delivery, findings

    if out.exists():
        raise UsageError("it exists already", where=str(out), hint="choose another --out")
    stages, role = _STAGES[stage]
    made = pipeline.run(
        Job(recipe, *request.pair(target, precision), code=Path.cwd()), runner, stages
    )
    if role not in made.entries:
        raise ToolchainMissing(
            f"no engine for {target} can be built on this machine",
            where=target,
            hint=f"`optkit build --target {target}` makes an artifact to finish on a host with it",
        )
    entry = made.entries[role]
    details = {key: value for key, value in entry.meta.items() if key != "reads"}
    names = delivery.copy_out(entry, out, details)
    return {
        "out": str(out),
        "files": names,
        "notes": _notes(details),
        "details": details,
        "calibration": findings.calibration(made),
    }


def figures(
    stage: str,
    *,
    recipe: Recipe,
    target: str,
    precision: str,
    runner: Runner,
    batches: Sequence[int] = (),
    limit_ms: float | None = None,
    strict: bool = False,
) -> dict[str, Any]:
    """`bench` (latency and speedup per batch size) or `eval` (accuracy, drop, fidelity).

    batches, limit_ms: of `bench`: sizes to sweep instead of the recipe's, and a limit on latency to
    choose one by. strict: a latency that was measured under bad conditions is measured once more.
    Raises UsageError for a batch that the model is not built for.
    """
    from optkit.benchmarking import accuracy
    from optkit.pipeline import findings
    from optkit.pipeline.scores import task_scores
    from optkit.report.result import plain, without_samples

    if batches:
        recipe = recipe.with_overrides([f"bench.batches={sorted(set(batches))}"])
    job = Job(recipe, *request.pair(target, precision), strict=strict, code=Path.cwd())
    found: dict[str, Any] = {
        "model": recipe.name,
        "target": job.target.name,
        "precision": precision,
    }
    if stage == "bench":
        pipeline.check_timed(job)
        if batches:
            _check_batches(batches, pipeline.run(job, runner, pipeline.EXPORT))
        made = pipeline.run(job, runner, pipeline.BENCH)
        times = findings.latencies(made)
        ratios = findings.speedups(made, times)
        return plain(
            {
                **found,
                "baseline": made.baseline_precision.name,
                "latency": [without_samples(one) for one in times["engine"]],
                "baseline_latency": [without_samples(one) for one in times["baseline"]],
                "speedup": [{"batch": n, **one.to_json()} for n, one in ratios.items()],
                "sweep": _sweep(times["engine"], limit_ms),
                "conditions": made.entries["latency"].meta.get("conditions", {}),
            }
        )
    made = pipeline.run(job, runner, pipeline.EVAL)
    scores = task_scores(made)
    candidate, baseline = scores.get("candidate"), scores.get("baseline")
    drop = accuracy.drop(baseline, candidate) if candidate and baseline else None
    verdict = findings.judge_accuracy(made, scores)
    return plain(
        {
            **found,
            "baseline": made.baseline_precision.name,
            "accuracy": without_samples(candidate),
            "baseline_accuracy": without_samples(baseline),
            "drop": drop and drop.to_json(),
            "fidelity": findings.fidelity(made).to_json(),
            "gate": verdict.to_json(),
            "calibration": findings.calibration(made),
        }
    )


def _check_batches(batches: Sequence[int], made: Build) -> None:
    """Raise UsageError for one that is outside what is built for, or would not be measured."""
    span = made.batches or AxisRange(1, 1, 1)
    for batch in batches:
        if not span.min <= batch <= span.max:
            raise UsageError(
                f"it is built for {span.min} to {span.max}",
                where=f"--batch {batch}",
                hint="widen the axis: --max-shapes, or `axes` in the recipe",
            )
        if not made.measured and batch != span.opt:
            raise UsageError(
                f"{made.job.target.name} is not this machine: only batch {span.opt}, which is "
                "tuned for, is predicted",
                where=f"--batch {batch}",
                hint="`optkit plan --batch` predicts others",
            )


def _sweep(latencies: Sequence[Latency], limit_ms: float | None) -> dict[str, Any]:
    """The batch at the knee (fewer than three have none), and the best one under the limit."""
    from optkit.benchmarking import sweep

    return {
        "knee": sweep.knee(latencies) if len(latencies) > 2 else None,
        "limit_ms": limit_ms,
        "best_under_limit": None if limit_ms is None else sweep.best_under(latencies, limit_ms),
    }


def _notes(details: Mapping[str, Any]) -> list[str]:
    """One line per rewrite or decision that a stage logged."""
    log = details.get("log") or {}
    rows = log.get("entries", ()) if isinstance(log, Mapping) else ()
    return [
        f"{row['rule']} {row['node']}: {row['outcome']}"
        + (f", {row['reason']}" if row.get("reason") else "")
        for row in rows
    ]
