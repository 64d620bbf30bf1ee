"""`optkit bench`: latency of a model beside its baseline, or of an artifact beside another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from optkit.cli import options
from optkit.errors import UsageError


def _share(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A share from "5%" or "0.05". Raises UsageError."""
    from optkit.recipe.schema import fraction

    if value is None:
        return None
    try:
        found = float(fraction(value if "%" in value else float(value)))
    except ValueError as error:
        raise UsageError(str(error), where="--max-slowdown", hint="write it like 5%") from error
    if found < 0:
        raise UsageError(f"{value} is below 0", where="--max-slowdown")
    return found


@click.command()
@options.job
@click.option("--target", metavar="NAME", help="A device; that of ARTIFACT with --against.")
@click.option("--precision", metavar="NAME", help="Default: int8.")
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Repeat for several; default: the recipe's, with --against what ARTIFACT is tuned for.",
)
@click.option(
    "--latency",
    "limit_ms",
    callback=options.milliseconds,
    metavar="TIME",
    help="Name the best batch within this limit for one call, e.g. 20ms.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="ARTIFACT",
    help="Time MODEL, an artifact, beside this one, both in one run.",
)
@click.option(
    "--max-slowdown",
    callback=_share,
    metavar="SHARE",
    help="With --against: exit 3 where all of the interval is beyond, e.g. 5%.",
)
@options.strict
@options.junit
@click.option(
    "--trusted",
    is_flag=True,
    help="With --against: engines not compiled on this machine are of somebody you know.",
)
@options.work
@options.output
def bench(
    target: str | None,
    precision: str | None,
    batches: tuple[int, ...],
    limit_ms: float | None,
    against: Path | None,
    max_slowdown: float | None,
    strict: bool,
    junit: Path | None,
    trusted: bool,
    **shared: Any,
) -> int:
    """Measure the latency of MODEL and its baseline; predict it if the target is not here.

    \b
    optkit bench --target cpu --batch 1 --batch 8 --batch 32     a sweep, and its knee
    optkit bench new/ --against old/ --max-slowdown 5%           a check for CI
    """
    request = options.gather(shared)
    if against is not None:
        asked = {"--target": target, "--precision": precision, "--latency": limit_ms}
        asked |= options.of_a_job(request)
        return _race(request, against, batches, max_slowdown, strict, junit, trusted, asked)
    if junit is not None:
        hint = "--against ARTIFACT --max-slowdown SHARE"
        raise UsageError("without a limit there is no verdict", where="--junit", hint=hint)
    for option, given in {"--max-slowdown": max_slowdown is not None, "--trusted": trusted}.items():
        if given:
            raise UsageError("against which artifact?", where=option, hint="--against PATH")
    if target is None:
        raise UsageError("it is missing", where="--target", hint="see `optkit targets`")
    return _figures(request, target, precision or "int8", batches, limit_ms, strict)


def _figures(
    request: options.Request,
    target: str,
    precision: str,
    batches: tuple[int, ...],
    limit_ms: float | None,
    strict: bool,
) -> int:
    from optkit import api
    from optkit.cli import summary, terminal

    with request.terminal() as ears:
        made = api.bench(
            recipe=options.recipe(request),
            target=target,
            precision=precision,
            batches=batches,
            limit_ms=limit_ms,
            strict=strict,
            workspace=options.workspace(request, ears),
        )
    if request.json:
        terminal.put_json({"schema": "optkit.bench/v1", "status": "ok", **made})
    else:
        terminal.put(summary.figures(made))
    for told in summary.stored(made["latency"]):
        ears.note(told)
    marks = dict.fromkeys(
        mark for one in (*made["latency"], *made["baseline_latency"]) for mark in one["marks"]
    )
    return _ended(ears, list(marks), strict)


def _race(
    request: options.Request,
    against: Path,
    batches: tuple[int, ...],
    max_slowdown: float | None,
    strict: bool,
    junit: Path | None,
    trusted: bool,
    asked: dict[str, Any],
) -> int:
    from optkit import api
    from optkit.cli import summary, terminal
    from optkit.cli.build import write_junit

    for option, value in asked.items():
        if value:
            raise UsageError("it means nothing beside --against", where=option)
    if junit is not None and max_slowdown is None:
        raise UsageError("without a limit there is no verdict", where="--junit",
                         hint="--max-slowdown SHARE, e.g. 5%")  # fmt: skip
    if request.model is None:
        hint = "optkit bench NEW --against OLD"
        raise UsageError("which artifact is it that is timed?", where="--against", hint=hint)
    with request.terminal() as ears:
        made = api.bench_against(
            request.model,
            against,
            batches=batches,
            overrides=request.overrides,
            max_slowdown=max_slowdown,
            strict=strict,
            trusted=trusted,
            workspace=options.workspace(request, ears),
        )
    if junit is not None:
        write_junit(junit, [(_named(made), _cases(made))], strict=strict)
    if request.json:
        terminal.put_json(made)
    else:
        terminal.put(summary.race(made))
    if made["verdict"] == "inconclusive":
        longer = "a longer run (--set bench.seconds=10)"
        ears.note(f"inconclusive: {longer} or a quieter machine may decide")
    marks = dict.fromkeys(mark for row in made["rows"] for mark in row["marks"])
    code = _ended(ears, list(marks), strict)
    failed = made["verdict"] == "fail" or (strict and made["verdict"] == "inconclusive")
    return 3 if failed else code


def _named(made: dict[str, Any]) -> dict[str, Any]:
    """What a suite of tests tells of the comparison."""
    name = f"{Path(made['artifact']).name} against {Path(made['against']).name}"
    return {**made, "model": name, "precision": None}


def _cases(made: dict[str, Any]) -> list[dict[str, Any]]:
    """A case per batch size."""
    return [
        {"gate": f"max_slowdown batch {row['batch']}", "outcome": row["outcome"],
         "reason": row["reason"], "evidence": row["slowdown"]["evidence"]}
        for row in made["rows"]
    ]  # fmt: skip


def _ended(ears: Any, marks: list[str], strict: bool) -> int:
    """Tell of bad conditions; the exit code."""
    if marks:
        ears.note(f"measured under bad conditions: {'; '.join(marks)}")
    return 3 if marks and strict else 0
