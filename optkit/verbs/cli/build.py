"""`optkit build`: the main job, for one or several targets and precisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.facts import errors
from optkit.facts.documents.dry_run import REHEARSAL, DryRun
from optkit.facts.documents.result import RESULTS, Result, Results
from optkit.facts.engines import SEARCH_MINUTES
from optkit.facts.errors import OptkitError, UsageError
from optkit.facts.listed_steps import Line
from optkit.facts.precisions import precision as find_precision
from optkit.facts.request import Request
from optkit.ground.devices import target as find_target
from optkit.ground.progress.terminal import Terminal
from optkit.ground.workspace import Workspace
from optkit.satellites.translation import ToolCommand
from optkit.show.report import contract, view
from optkit.show.report.build_result import failed
from optkit.verbs import api
from optkit.verbs.cli import api_calls, command_output, github, summary, translated
from optkit.verbs.cli.command_output import Output

if TYPE_CHECKING:  # loads the pipeline, which the refusal of an unknown target does not need
    from optkit.road.jobs import Pair
    from optkit.verbs.api._build_fleet import BuiltFleet

# Exit codes of several results: the worst decides, in this order. Scripts rely on it.
_WORST_FIRST = (1, 2, 7, 8, 6, 5, 4, 3)
_DEFAULT = ("int8",)  # for a float model, and for the results of builds that fail early


def build(
    targets: tuple[str, ...],
    precisions: tuple[str, ...],
    out: Path,
    junit: Path | None,
    strict: bool,
    defer: bool,
    dry_run: bool,
    embed_eval: int,
    embed_pictures: bool,
    request: Request,
    command: ToolCommand,
    workspace: Workspace,
    output: Output,
) -> int:
    asked = translated.read(command, request, precisions, output)
    pairs, refused = _parsed(targets, asked.precisions or _DEFAULT)
    if asked.refusal is not None:
        refused += [_Refused(t.name, p.name, asked.refusal) for t, p in pairs]
        pairs = []
    if dry_run and refused:
        raise refused[0].error
    named = bool(asked.precisions)
    if dry_run:
        return _rehearse(asked, pairs, named, workspace)
    if refused:
        results, fleet = _told(refused), None
    else:
        results, fleet = _build(
            asked.request,
            pairs,
            out,
            workspace,
            asked.output,
            named=named,
            embed_eval=embed_eval,
            embed_pictures=embed_pictures,
            defer=defer,
            strict=strict,
        )
    if asked.account is not None:
        results = [one.model_copy(update={"translation": asked.account}) for one in results]
    if junit is not None:
        from optkit.verbs.cli import junit_file  # loads the XML library

        junit_file.write_results(junit, results, strict=strict)
    _show(asked.output, results, fleet, several=len(pairs) + len(refused) > 1)
    codes = {exit_code(result, strict) for result in results}
    return next((code for code in _WORST_FIRST if code in codes), 0)


@dataclass(frozen=True)
class _Refused:
    """A pair of target and precision that is not built: one of the names is unknown, or the command
    has a flag that cannot be followed."""

    target: str
    precision: str
    error: UsageError


def _parsed(targets: Iterable[str], precisions: Iterable[str]) -> tuple[list[Pair], list[_Refused]]:
    """Every pair of target and precision, each once, also if names are aliases; and the unknown
    names, which stop the command before any work."""

    pairs: dict[tuple[str, str], Pair] = {}
    misnamed: dict[tuple[str, str], _Refused] = {}
    for target, precision in product(dict.fromkeys(targets), dict.fromkeys(precisions)):
        shown = target
        try:
            device = find_target(target)
            shown = device.name
            scheme = find_precision(precision)
        except UsageError as error:
            misnamed[shown, precision] = _Refused(shown, precision, error)
        else:
            pairs[device.name, scheme.name] = device, scheme
    return list(pairs.values()), list(misnamed.values())


def _told(refused: Sequence[_Refused]) -> list[Result]:
    """Show each error once; the results of the pairs."""
    for error in dict.fromkeys(one.error for one in refused):
        command_output.show_error(error)
    return [failed(one.error, target=one.target, precision=one.precision) for one in refused]


def _build(
    request: Request,
    pairs: list[Pair],
    out: Path,
    workspace: Workspace,
    output: Output,
    *,
    named: bool,
    embed_eval: int,
    embed_pictures: bool,
    defer: bool,
    strict: bool,
) -> tuple[list[Result], BuiltFleet | None]:
    """The results of all pairs, and the folder of the fleet if there are several. `named`: the user
    gave the precisions; otherwise the model decides."""

    ears, model = output.terminal(), None

    def told(error: Exception) -> OptkitError:
        found = command_output.told_as(error, verbose=output.verbose)
        ears.close()
        command_output.show_error(found, verbose=output.verbose)
        return found

    try:
        recipe = api_calls.recipe(request, workspace, output)
        model = recipe.name
        workspace = api_calls.reporting(workspace, ears)
        if len(pairs) == 1:
            target, precision = pairs[0]
            one = api.build(
                recipe=recipe,
                target=target,
                precision=precision if named else None,
                out=out,
                embed_eval=embed_eval,
                embed_pictures=embed_pictures,
                defer=defer,
                strict=strict,
                workspace=workspace,
            )
            return [contract.result_of(one)], None
        made = api.build_fleet(
            recipe=recipe, targets=[t for t, _ in pairs],
            precisions=[p for _, p in pairs] if named else None, out=out, on_failure=told,
            embed_eval=embed_eval, embed_pictures=embed_pictures, defer=defer, strict=strict,
            workspace=workspace,
        )  # fmt: skip
        return list(made.document.results), made
    except Exception as error:  # of the recipe, of a single pair, or of the report of the fleet
        failure = told(error)
        return [
            failed(failure, model=model, target=t.name, precision=p.name) for t, p in pairs
        ], None
    finally:
        ears.close()


def exit_code(result: Result, strict: bool) -> int:
    if result.error is not None:
        return errors.from_json(result.error.to_json()).exit_code
    verdict = result.gate.verdict if result.gate else "pass"
    doubtful = (
        verdict == "inconclusive"
        or summary.marks(result)
        or summary.suspect(result)
        or summary.nothing_quantized(result)
    )
    return 3 if verdict == "fail" or (strict and doubtful) else 0


def _show(
    output: Output, results: list[Result], fleet: BuiltFleet | None, *, several: bool
) -> None:
    if output.json:
        place = None if fleet is None else str(fleet.path)
        all_of_them = Results(schema=RESULTS, results=tuple(results), fleet=place)
        command_output.put_json(all_of_them if several else results[0])
    built = [one for one in results if one.error is None]
    github.summarize([fleet.path / "report.md"] if fleet else github.reports(built))
    if built and not output.json:
        command_output.put_figures(summary.table(built))
    if fleet is not None and not output.json:
        command_output.put(f"all together: {fleet.path}/report.html")
    for one in built:
        for remark in summary.remarks(one):
            Terminal().note(f"{one.target} {one.precision}: {remark}")
    if not output.json:
        _advise(built, fleet)


def _advise(built: Sequence[Result], fleet: BuiltFleet | None) -> None:
    """The last lines: the recommendation for each build, and for all of them together."""
    advice = [one.recommendation for one in built]
    advice += [fleet.document.recommendation] if fleet is not None else []
    for one in advice:
        if one is not None:
            command_output.put_figures(one.sentence)


def _rehearse(
    asked: translated.CommandRequest, pairs: list[Pair], named: bool, workspace: Workspace
) -> int:
    plans = []
    for target, precision in pairs:
        recipe = api_calls.recipe(asked.request, workspace, asked.output, dry=True)
        plans.append(
            api.rehearse(
                recipe=recipe,
                target=target,
                precision=precision if named else None,
                workspace=workspace,
            )
        )
    if asked.output.json:
        command_output.put_json(
            DryRun(
                schema=REHEARSAL,
                evidence="predicted",
                plans=tuple(plans),
                translation=asked.account,
            )
        )
        return 0
    for plan in plans:
        command_output.put(f"{plan.target} {plan.precision}")
        _show_steps(plan.steps)
        for spec in plan.asked:
            if spec.precision == plan.precision:  # the baseline gets the same options
                command_output.put(f"options of {spec.backend}")
                rows = [list(row) for row in view.asked_rows(spec)]
                command_output.put(command_output.table(["option", "value", "why"], rows))
        _show_estimate([line for line in plan.steps if not line.hit])
        if any(SEARCH_MINUTES in spec.options for spec in plan.asked):
            command_output.put(
                "not in this estimate: TensorRT times kernels on the target: minutes at level 3, "
                "and 30 minutes to over 10 hours at level 5 in public reports"
            )
    return 0


def _show_steps(steps: Iterable[Line]) -> None:
    rows = [_row(line) for line in steps]
    command_output.put(command_output.table(["step", "store", "about", "disk", "what"], rows))


def _show_estimate(steps: Sequence[Line]) -> None:
    """Print the times that the steps which will run took before."""
    if any(line.seconds is None for line in steps):
        command_output.put("estimates: unknown for steps that this store has never run")
    command_output.put(
        f"predicted from this store's history: {sum(line.seconds or 0 for line in steps):.0f} s, "
        f"{sum(line.bytes or 0 for line in steps) / 2**20:.1f} MiB; nothing was written"
    )


def _row(line: Line) -> list[str]:
    if line.hit:
        return [line.step, "hit", "", "", line.label]
    size = line.bytes and round(line.bytes / 2**20, 1)
    return [line.step, "run", _known(line.seconds, "s"), _known(size, "MiB"), line.label]


def _known(value: float | None, unit: str) -> str:
    return "?" if value is None else f"{value:g} {unit}"
