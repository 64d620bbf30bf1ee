"""`optkit tune`: the fastest assignment of precisions to layers inside a budget."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optkit.cli import build, options
from optkit.errors import GateFailed, OptkitError, UsageError
from optkit.request import Request
from optkit.workspace import Workspace

if TYPE_CHECKING:
    from optkit.documents.result import Result
    from optkit.documents.tune import Tune
    from optkit.tuning import Budget

_SHOWN = 8  # layers


def _limit(text: str | None, option: str, unit: str, hint: str) -> float | None:
    """A positive number, with or without its unit. Raises UsageError."""
    if text is None:
        return None
    found = re.fullmatch(rf"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) ?(?:{unit})?", text.strip(), re.I)
    if found is None or not float(found[1]):
        raise UsageError(f"{text!r} is not a limit", where=option, hint=hint)
    return float(found[1])


@click.command()
@options.job
@click.option("--target", required=True, metavar="NAME", help="A device, see `optkit targets`.")
@click.option("--max-drop", metavar="PERCENT", help="Limit on the drop of the metric, e.g. 0.5%.")
@click.option("--min-sqnr", metavar="DB", help="Limit on the SQNR of the outputs, e.g. 40.")
@click.option("--max-latency", metavar="MS", help="Limit at the tuned batch, e.g. 1.5ms.")
@click.option("--max-size", metavar="SIZE", help="Limit on the size of the engine, e.g. 20M.")
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    default=("int8",),
    show_default=True,
    metavar="NAME",
    help="A precision that layers may have besides the carrier; repeat for several.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Candidates to try at most; default: 24.",
)
@click.option(
    "--time",
    "seconds",
    callback=options.seconds,
    metavar="TIME",
    help="Stop the search after this time, e.g. 10m; the best candidate is then built.",
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="S")
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    metavar="K",
    help="With --on: trials at a time; default: the cluster's cores, at most --trials / 4.",
)
@options.artifact
@options.work_anywhere
@options.output
def tune(
    target: str,
    max_drop: str | None,
    min_sqnr: str | None,
    max_latency: str | None,
    max_size: str | None,
    precisions: tuple[str, ...],
    trials: int | None,
    seconds: float | None,
    seed: int,
    parallel: int | None,
    out: Path,
    strict: bool,
    request: Request,
    workspace: Workspace,
    output: options.Output,
) -> int:
    """Find the fastest assignment of precisions to the layers of MODEL within a budget.

    Limits that are not given are those of the recipe's gates. The search builds the best candidate
    and writes its recipe and the Pareto front next to it. To continue a search, run it again.
    """
    from optkit import api, tuning
    from optkit.cli import github, terminal
    from optkit.report import contract

    budget = _budget(max_drop, min_sqnr, max_latency, max_size)
    names = tuple(dict.fromkeys(name.lower() for name in precisions))
    ears, model = output.terminal(), None
    try:
        recipe = options.recipe(request, workspace, output)
        model = recipe.name
        found = api.tune(
            recipe=recipe,
            target=target,
            precisions=names,
            budget=budget,
            search=tuning.SearchOptions(trials or tuning.TRIALS, seconds, seed, parallel),
            out=out,
            strict=strict,
            workspace=options.reporting(workspace, ears),
        )
    except Exception as error:
        told = terminal.told_as(error, verbose=output.verbose)
        ears.close()
        terminal.show_error(told, verbose=output.verbose)
        if output.json:
            terminal.put_json(result_of(told, model, target))
        return told.exit_code
    finally:
        ears.close()
    result = contract.result_of(found.artifact)
    _show(output, found.search, result)
    github.summarize([found.folder / "tune.md", *github.reports([result])])
    if found.search.status == "gate_failed":
        return GateFailed.exit_code
    return build.exit_code(result, strict)


def result_of(
    error: OptkitError, model: str | None = None, target: str | None = None
) -> dict[str, Any]:
    """The object of a search that never came to an end."""
    from optkit.tuning import document

    return document.failed(error, model=model, target=target).to_json()


def _budget(
    max_drop: str | None, min_sqnr: str | None, max_latency: str | None, max_size: str | None
) -> Budget:
    from optkit.recipe.schema import fraction
    from optkit.tuning import Budget

    try:
        drop = None if max_drop is None else fraction(_number(max_drop))
    except ValueError as error:
        raise UsageError(str(error), where="--max-drop", hint="e.g. 0.5%") from error
    return Budget(
        drop,
        _limit(min_sqnr, "--min-sqnr", "dB", "decibels, e.g. 40"),
        _limit(max_latency, "--max-latency", "ms", "milliseconds, e.g. 1.5ms"),
        None if max_size is None else options.parse_size(max_size),
    )


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _show(output: options.Output, search: Tune, result: Result) -> None:
    from optkit.cli import summary, terminal
    from optkit.tuning import document

    for remark in [*filter(None, [search.reason]), *summary.remarks(result)]:
        terminal.Terminal().note(remark)
    if output.json:
        terminal.put_json(search.to_json())
        return
    head, *rows = document.rows(search)
    terminal.put(terminal.table(head, rows))
    terminal.put("what costs most accuracy, quantized alone:")
    ranked = [
        [f"  {row.share:.0%}", row.precision, ", ".join(row.layers), row.chosen]
        for row in search.layers[:_SHOWN]
    ]
    terminal.put(terminal.table(["  of noise", "as", "layers", "became"], ranked))
    terminal.put(summary.table([result]))
    terminal.put(f"  again: {search.command}")
    if search.search is not None:
        terminal.put(f"  {search.search.trials} trials, {search.search.parallel} at a time")
