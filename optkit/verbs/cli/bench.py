"""`optkit bench`: latency of a model and its baseline, or of two artifacts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from optkit.facts.documents.against import Against
from optkit.facts.documents.model_figures import BenchFigures
from optkit.facts.errors import UsageError
from optkit.facts.request import Request
from optkit.ground.progress.terminal import Terminal
from optkit.ground.recipe.percentages import fraction
from optkit.ground.workspace import Workspace
from optkit.show.report.junit import GateCase, Suite
from optkit.verbs import api
from optkit.verbs.cli import api_calls, command_output, junit_file, summary
from optkit.verbs.cli.command_output import Output


def bench(
    target: str | None,
    precision: str | None,
    batches: tuple[int, ...],
    limit_ms: float | None,
    against: Path | None,
    max_slowdown: str | None,
    strict: bool,
    junit: Path | None,
    trusted: bool,
    request: Request,
    workspace: Workspace,
    output: Output,
) -> int:
    limit = _share(max_slowdown)
    if against is None:
        target = _needed(target, junit, limit, trusted)
        recipe = api_calls.recipe(request, workspace, output)
        with output.terminal() as ears:
            figures = api.bench(
                recipe=recipe,
                target=target,
                precision=precision or "int8",
                batches=batches,
                limit_ms=limit_ms,
                strict=strict,
                workspace=api_calls.reporting(workspace, ears),
            )
        return _show_figures(figures, output, ears, strict)
    candidate = _candidate(request, target, precision, limit_ms, junit, limit)
    with output.terminal() as ears:
        race = api.bench_against(
            candidate,
            against,
            batches=batches,
            overrides=request.overrides,
            max_slowdown=limit,
            strict=strict,
            trusted=trusted,
            workspace=api_calls.reporting(workspace, ears),
        )
    if junit is not None:
        junit_file.write(junit, [_suite(race)], strict=strict)
    return _show_race(race, output, ears, strict)


def _share(value: str | None) -> float | None:
    """A share from "5%" or "0.05". Raises UsageError."""
    if value is None:
        return None
    try:
        found = float(fraction(value if "%" in value else float(value)))
    except ValueError as error:
        raise UsageError(str(error), where="--max-slowdown", hint="write it like 5%") from error
    if found < 0:
        raise UsageError(f"it must not be negative: {value}", where="--max-slowdown")
    return found


def _needed(
    target: str | None, junit: Path | None, max_slowdown: float | None, trusted: bool
) -> str:
    """The target. Raises UsageError if it is missing, and for options that only work with
    --against."""
    if junit is not None:
        hint = "--against ARTIFACT --max-slowdown SHARE"
        raise UsageError(
            "it needs a limit: without one there is no verdict", where="--junit", hint=hint
        )
    for option, given in {"--max-slowdown": max_slowdown is not None, "--trusted": trusted}.items():
        if given:
            raise UsageError("it needs --against", where=option, hint="--against PATH")
    if target is None:
        raise UsageError("the option is required", where="--target", hint="see `optkit targets`")
    return target


def _candidate(
    request: Request,
    target: str | None,
    precision: str | None,
    limit_ms: float | None,
    junit: Path | None,
    max_slowdown: float | None,
) -> str:
    """The artifact to time. Raises UsageError if it is missing, and for options that apply only to
    a model that is built."""
    asked = {"--target": target, "--precision": precision, "--latency": limit_ms}
    for option, value in {**asked, **_beside_a_model(request)}.items():
        if value:
            raise UsageError("it cannot be used with --against", where=option)
    if junit is not None and max_slowdown is None:
        raise UsageError(
            "it needs a limit: without one there is no verdict",
            where="--junit",
            hint="--max-slowdown SHARE, e.g. 5%",
        )
    if request.model is None:
        hint = "optkit bench NEW --against OLD"
        raise UsageError("give the artifact to measure as MODEL", where="--against", hint=hint)
    return request.model


def _beside_a_model(request: Request) -> dict[str, str | bool | None]:
    """The options about the model and its data, except MODEL and --set, with their values."""
    return {
        "--recipe": None if request.recipe is None else str(request.recipe),
        "--task": request.task,
        "--adapter": request.adapter,
        "--trust-remote-code": request.trust_remote_code,
        "--calibration": request.calibration,
        "--eval": request.eval_task,
        "--eval-data": request.eval_data,
        "--shapes": request.shapes,
        "--min-shapes": request.min_shapes,
        "--opt-shapes": request.opt_shapes,
        "--max-shapes": request.max_shapes,
    }


def _show_figures(found: BenchFigures, output: Output, ears: Terminal, strict: bool) -> int:
    if output.json:
        command_output.put_json(found)
    else:
        command_output.put_figures(summary.timings(found))
    for told in summary.stored(found.latency):
        ears.note(told)
    latencies = (*found.latency, *found.baseline_latency)
    return _ended(ears, (mark for one in latencies for mark in one.marks), strict)


def _show_race(race: Against, output: Output, ears: Terminal, strict: bool) -> int:
    if output.json:
        command_output.put_json(race)
    else:
        command_output.put_figures(summary.race(race))
    if race.verdict == "inconclusive":
        longer = "a longer run (--set bench.seconds=10)"
        ears.note(f"inconclusive: {longer} or a less busy machine may decide")
    code = _ended(ears, (mark for row in race.rows for mark in row.marks), strict)
    failed = race.verdict == "fail" or (strict and race.verdict == "inconclusive")
    return 3 if failed else code


def _suite(race: Against) -> Suite:
    """A test case per batch size."""
    name = f"{Path(race.artifact).name} against {Path(race.against).name}"
    cases = [
        GateCase(
            f"max_slowdown batch {row.batch}",
            str(row.outcome),
            str(row.reason),
            row.slowdown.evidence,
        )
        for row in race.rows
    ]
    about = {"artifact": race.artifact, "status": race.status}
    return Suite((name, race.target), cases, about)


def _ended(ears: Terminal, marks: Iterable[str], strict: bool) -> int:
    """Print bad conditions of the run, and return the exit code."""
    told = list(dict.fromkeys(marks))
    if told:
        ears.note(f"measured under bad conditions: {'; '.join(told)}")
    return 3 if told and strict else 0
