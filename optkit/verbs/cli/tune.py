"""`optkit tune`: the fastest assignment of precisions to layers within a budget."""

from __future__ import annotations

import re
from pathlib import Path

from optkit.facts.documents.result import Result
from optkit.facts.documents.tune import Tune
from optkit.facts.errors import GateFailed, UsageError
from optkit.facts.request import Request
from optkit.ground.progress.terminal import Terminal
from optkit.ground.recipe.percentages import fraction
from optkit.ground.workspace import Workspace
from optkit.satellites import tuning
from optkit.satellites.tuning import Budget, tune_document
from optkit.show.report import contract
from optkit.verbs import api
from optkit.verbs.cli import api_calls, build, command_output, github, summary
from optkit.verbs.cli.command_output import Output

_SHOWN = 8  # layers


def _decibels(text: str | None) -> float | None:
    """A positive number, with or without "dB". Raises UsageError for other text."""
    if text is None:
        return None
    number = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) ?(?:dB)?", text.strip(), re.I)
    if number is None or not float(number[1]):
        hint = "decibels, e.g. 40"
        raise UsageError(f"{text!r} is not a limit", where="--min-sqnr", hint=hint)
    return float(number[1])


def tune(
    target: str,
    max_drop: str | None,
    min_sqnr: str | None,
    max_latency: float | None,
    max_size: int | None,
    precisions: tuple[str, ...],
    trials: int | None,
    seconds: float | None,
    seed: int,
    parallel: int | None,
    out: Path,
    strict: bool,
    request: Request,
    workspace: Workspace,
    output: Output,
) -> int:
    budget = _budget(max_drop, min_sqnr, max_latency, max_size)
    names = tuple(dict.fromkeys(name.lower() for name in precisions))
    ears, model = output.terminal(), None
    try:
        recipe = api_calls.recipe(request, workspace, output)
        model = recipe.name
        found = api.tune(
            recipe=recipe,
            target=target,
            precisions=names,
            budget=budget,
            search=tuning.SearchOptions(trials or tuning.TRIALS, seconds, seed, parallel),
            out=out,
            strict=strict,
            workspace=api_calls.reporting(workspace, ears),
        )
    except Exception as error:
        told = command_output.told_as(error, verbose=output.verbose)
        ears.close()
        command_output.show_error(told, verbose=output.verbose)
        if output.json:
            command_output.put_json(tune_document.failed(told, model=model, target=target))
        return told.exit_code
    finally:
        ears.close()
    result = contract.result_of(found.artifact)
    _show(output, found.search, result)
    github.summarize([found.folder / "tune.md", *github.reports([result])])
    if found.search.status == "gate_failed":
        return GateFailed.exit_code
    return build.exit_code(result, strict)


def _budget(
    max_drop: str | None, min_sqnr: str | None, max_latency: float | None, max_size: int | None
) -> Budget:
    try:
        drop = None if max_drop is None else fraction(_number(max_drop))
    except ValueError as error:
        raise UsageError(str(error), where="--max-drop", hint="e.g. 0.5%") from error
    return Budget(drop, _decibels(min_sqnr), max_latency, max_size)


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _show(output: Output, search: Tune, result: Result) -> None:
    for remark in [*filter(None, [search.reason]), *summary.remarks(result)]:
        Terminal().note(remark)
    if output.json:
        command_output.put_json(search)
        return
    head, *rows = tune_document.rows(search)
    command_output.put_figures(command_output.table(head, rows))
    command_output.put(
        "the groups of layers with the largest loss of accuracy, each quantized alone:"
    )
    ranked = [
        [f"  {row.share:.0%}", row.precision, ", ".join(row.layers), row.chosen]
        for row in search.layers[:_SHOWN]
    ]
    command_output.put(command_output.table(["  of noise", "as", "layers", "became"], ranked))
    command_output.put_figures(summary.table([result]))
    command_output.put(f"  again: {search.command}")
    if search.search is not None:
        command_output.put(f"  {search.search.trials} trials, {search.search.parallel} at a time")
    if search.recommendation is not None:
        command_output.put_figures(search.recommendation.sentence)
