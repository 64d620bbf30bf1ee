"""`optkit build`: the main job, for one or several targets and precisions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import click

from optkit import errors
from optkit.cli import options
from optkit.errors import OptkitError, UsageError
from optkit.request import Request
from optkit.workspace import Workspace

if TYPE_CHECKING:
    from optkit.api.jobs import Pair
    from optkit.documents.report import GateOutcome
    from optkit.documents.result import Result
    from optkit.execute.rehearsal import Line
    from optkit.report.junit import Suite

# Several results: the worst decides, in this order (design: the contract that scripts rely on).
_WORST_FIRST = (1, 2, 7, 8, 6, 5, 4, 3)


@click.command()
@options.job
@options.targets
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    default=("int8",),
    metavar="NAME",
    show_default=True,
    help="fp32, fp16, bf16, int8, int8-weight-only, fp8, int4, w4a8, nvfp4 or nf4; repeat for "
    "several.",
)
@options.artifact
@click.option(
    "--defer",
    is_flag=True,
    help="Do not compile or measure here; `optkit finish` does it on a host with the device.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show steps, cache hits and estimates; write nothing."
)
@click.option(
    "--embed-eval",
    default="64M",
    callback=lambda c, p, v: options.parse_size(v, least=0),
    show_default=True,
    metavar="SIZE",
    help="Largest size of the evaluation samples in the artifact; 0 for none.",
)
@options.junit
@options.work_anywhere
@options.output
def build(
    targets: tuple[str, ...],
    precisions: tuple[str, ...],
    out: Path,
    junit: Path | None,
    strict: bool,
    defer: bool,
    dry_run: bool,
    embed_eval: int,
    request: Request,
    workspace: Workspace,
    output: options.Output,
) -> int:
    """Build a verified artifact of MODEL for each target and precision.

    MODEL: model.onnx, model.pt2, file.py:factory, package.module:factory, a Hugging Face folder or
    org/name. Without it: --recipe, else the project's default recipe (optkit.yaml, or
    [tool.optkit] recipe in pyproject.toml).
    """  # fmt: skip
    from optkit.cli import terminal

    pairs, misnamed = _parsed(targets, precisions)
    if dry_run and misnamed:
        raise misnamed[0].error
    if dry_run:
        return _rehearse(request, pairs, workspace, output)
    if misnamed:
        results, fleet = [result_of(m.error, m.target, m.precision) for m in misnamed], None
        for name in misnamed:
            terminal.show_error(name.error)
    else:
        results, fleet = _build(
            request, pairs, out, workspace, output, embed_eval=embed_eval, defer=defer,
            strict=strict,
        )  # fmt: skip
    if junit is not None:
        write_junit(junit, suites_of(results), strict=strict)
    _show(output, results, fleet, several=len(pairs) + len(misnamed) > 1)
    codes = {exit_code(result, strict) for result in results}
    return next((code for code in _WORST_FIRST if code in codes), 0)


@dataclass(frozen=True)
class _Misnamed:
    """A target or a precision that nobody knows."""

    target: str
    precision: str
    error: UsageError


def _parsed(
    targets: Iterable[str], precisions: Iterable[str]
) -> tuple[list[Pair], list[_Misnamed]]:
    """Every target in every precision, each once, whatever alias it goes by; and the names that
    stop everything before work."""
    from optkit.devices import target as find_target
    from optkit.precisions import precision as find_precision

    pairs: dict[tuple[str, str], Pair] = {}
    misnamed: dict[tuple[str, str], _Misnamed] = {}
    for target, precision in product(dict.fromkeys(targets), dict.fromkeys(precisions)):
        shown = target
        try:
            device = find_target(target)
            shown = device.name
            scheme = find_precision(precision)
        except UsageError as error:
            misnamed[shown, precision] = _Misnamed(shown, precision, error)
        else:
            pairs[device.name, scheme.name] = device, scheme
    return list(pairs.values()), list(misnamed.values())


def result_of(
    error: OptkitError,
    target: str | None = None,
    precision: str | None = None,
    model: str | None = None,
) -> Result:
    """The result of a build that never came to be."""
    from optkit.report.result import failed

    return failed(error, model=model, target=target, precision=precision)


def _build(
    request: Request,
    pairs: list[Pair],
    out: Path,
    workspace: Workspace,
    output: options.Output,
    *,
    embed_eval: int,
    defer: bool,
    strict: bool,
) -> tuple[list[Result], str | None]:
    """The results of all pairs, and the fleet's folder where there are several."""
    from optkit import api
    from optkit.cli import terminal
    from optkit.report import contract

    ears, model = output.terminal(), None

    def told(error: Exception) -> OptkitError:
        found = terminal.told_as(error, verbose=output.verbose)
        ears.close()
        terminal.show_error(found, verbose=output.verbose)
        return found

    try:
        recipe = options.recipe(request, workspace, output)
        model = recipe.name
        workspace = options.reporting(workspace, ears)
        if len(pairs) == 1:
            target, precision = pairs[0]
            one = api.build(
                recipe=recipe, target=target, precision=precision, out=out, embed_eval=embed_eval,
                defer=defer, strict=strict, workspace=workspace,
            )  # fmt: skip
            return [contract.result_of(one)], None
        made = api.build_fleet(
            recipe=recipe, pairs=pairs, out=out, on_failure=told, embed_eval=embed_eval,
            defer=defer, strict=strict, workspace=workspace,
        )  # fmt: skip
        return list(made.document.results), str(made.path)
    except Exception as error:  # of the recipe, of the only pair, or of the fleet's own report
        failure = told(error)
        return [result_of(failure, t.name, p.name, model) for t, p in pairs], None
    finally:
        ears.close()


def exit_code(result: Result, strict: bool) -> int:
    from optkit.cli.summary import marks, suspect

    if result.error is not None:
        return errors.from_json(result.error.to_json()).exit_code
    verdict = result.gate.verdict if result.gate else "pass"
    doubtful = verdict == "inconclusive" or marks(result) or suspect(result)
    return 3 if verdict == "fail" or (strict and doubtful) else 0


def write_junit(file: Path, suites: Iterable[Suite], *, strict: bool) -> None:
    """Results and the rows of their gates as JUnit XML; before they are printed, since with --json
    a command prints one object, which may be the error. Raises StorageError."""
    from optkit.report.junit import to_junit
    from optkit.store import storage_errors, write_durably

    content, place = to_junit(suites, strict=strict), file.resolve()
    with storage_errors(file):
        if place.exists() and not place.is_file():
            place.write_bytes(content)  # into a pipe or a device, which must not be replaced
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        write_durably(place, content)


def suites_of(results: Sequence[Result]) -> list[Suite]:
    """Each result, or part of it, with the rows of its gates: they stand in its artifact's
    report."""
    from optkit.report.junit import Suite

    each = [part for one in results for part in (one.parts or {"": one}).values()]
    return [Suite.of(one, _gates(one.artifact)) for one in each]


def _gates(artifact: str | None) -> list[GateOutcome]:
    from optkit.documents.report import GateOutcome

    if artifact is None:
        return []
    report = json.loads((Path(artifact) / "report.json").read_bytes())
    return [GateOutcome.from_json(row) for row in report["gates"]]


def _show(
    output: options.Output, results: list[Result], fleet: str | None, *, several: bool
) -> None:
    from optkit.cli import github, summary, terminal
    from optkit.documents.result import RESULTS, Results

    if output.json:
        all_of_them = Results(schema=RESULTS, results=tuple(results), fleet=fleet)
        terminal.put_json((all_of_them if several else results[0]).to_json())
    built = [one for one in results if one.error is None]
    github.summarize([Path(fleet) / "report.md"] if fleet else github.reports(built))
    if built and not output.json:
        terminal.put(summary.table(built))
    if fleet is not None and not output.json:
        terminal.put(f"all together: {fleet}/report.html")
    for one in built:
        for remark in summary.remarks(one):
            terminal.Terminal().note(f"{one.target} {one.precision}: {remark}")


def _rehearse(
    request: Request,
    pairs: list[Pair],
    workspace: Workspace,
    output: options.Output,
) -> int:
    from dataclasses import asdict

    from optkit import api
    from optkit.cli import terminal
    from optkit.report import view

    plans = []
    for target, precision in pairs:
        recipe = options.recipe(request, workspace, output, dry=True)
        plan = api.rehearse(
            recipe=recipe, target=target, precision=precision, workspace=workspace
        )  # fmt: skip
        plans.append((target.name, precision.name, plan))
    if output.json:
        data = [{"target": name, "precision": scheme, **asdict(plan)}
                for name, scheme, plan in plans]  # fmt: skip
        terminal.put_json({"schema": "optkit.rehearsal/v1", "evidence": "predicted", "plans": data})
        return 0
    for name, scheme, plan in plans:
        terminal.put(f"{name} {scheme}")
        rows = [_row(line) for line in plan.steps]
        terminal.put(terminal.table(["step", "store", "about", "disk", "what"], rows))
        for spec in plan.asked:
            if spec.precision != scheme:
                continue  # of the baseline, which is asked alike
            terminal.put(f"what {spec.backend} is asked")
            told = [list(row) for row in view.asked_rows(spec)]
            terminal.put(terminal.table(["option", "value", "why"], told))
        todo = [line for line in plan.steps if not line.hit]
        if any(line.seconds is None for line in todo):
            terminal.put("estimates: unknown where this store has not seen such a step yet")
        terminal.put(
            f"predicted from this store's history: {sum(x.seconds or 0 for x in todo):.0f} s, "
            f"{sum(x.bytes or 0 for x in todo) / 2**20:.1f} MiB; nothing was written"
        )
    return 0


def _row(line: Line) -> list[str]:
    if line.hit:
        return [line.step, "hit", "", "", line.label]
    size = line.bytes and round(line.bytes / 2**20, 1)
    return [line.step, "run", _known(line.seconds, "s"), _known(size, "MiB"), line.label]


def _known(value: float | None, unit: str) -> str:
    return "?" if value is None else f"{value:g} {unit}"
