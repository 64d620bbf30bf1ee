"""The single stages: `export`, `fuse`, `quantize`, `compile`, `eval`.

Each runs the steps of `build` up to its stage, with the same store, and shows the result of that
stage.
"""

from __future__ import annotations

from pathlib import Path

from optkit.facts.documents.stages import StageFiles
from optkit.facts.request import Request
from optkit.ground.workspace import Workspace
from optkit.show.report import coverage
from optkit.show.report.junit import Suite
from optkit.show.report.view import losses
from optkit.verbs import api
from optkit.verbs.api._stages import Stage
from optkit.verbs.cli import api_calls, command_output, junit_file, summary
from optkit.verbs.cli.command_output import Output


def export(out: Path, request: Request, workspace: Workspace, output: Output) -> None:
    _files("export", out, request, workspace, output)


def fuse(out: Path, request: Request, workspace: Workspace, output: Output) -> None:
    _files("fuse", out, request, workspace, output)


def quantize(
    out: Path,
    target: str,
    precision: str,
    strict: bool,
    request: Request,
    workspace: Workspace,
    output: Output,
) -> int:
    made = _files("quantize", out, request, workspace, output, target, precision)
    found = made.quantized
    nothing = found is not None and not found.quantized
    return 3 if strict and (nothing or summary.is_suspect(made.calibration)) else 0


def compile_(
    out: Path, target: str, precision: str, request: Request, workspace: Workspace, output: Output
) -> None:
    _files("compile", out, request, workspace, output, target, precision)


def eval_(
    target: str,
    precision: str,
    strict: bool,
    junit: Path | None,
    request: Request,
    workspace: Workspace,
    output: Output,
) -> int:
    with output.terminal() as ears:
        figures = api.evaluate(
            recipe=api_calls.recipe(request, workspace, output),
            target=target,
            precision=precision,
            strict=strict,
            workspace=api_calls.reporting(workspace, ears),
        )
    gate = figures.gate
    if junit is not None:
        junit_file.write(junit, [Suite.of_scores(figures)], strict=strict)
    if output.json:
        command_output.put_json(figures)
    else:
        command_output.put_figures(summary.scores(figures))
    for reason in gate.reasons:
        ears.note(reason)
    for loss in losses(figures.sizes):
        ears.note(f"suspect: {loss}")
    suspect = summary.is_suspect(figures.calibration) or summary.is_suspect(figures.sizes)
    doubtful = gate.verdict != "pass" or suspect
    return 3 if gate.verdict == "fail" or (strict and doubtful) else 0


def _files(
    stage: Stage,
    out: Path,
    request: Request,
    workspace: Workspace,
    output: Output,
    target: str = "cpu",
    precision: str = "fp32",
) -> StageFiles[str]:
    with output.terminal() as ears:
        made = api.stage_files(
            stage,
            recipe=api_calls.recipe(request, workspace, output),
            target=target,
            precision=precision,
            out=out,
            workspace=api_calls.reporting(workspace, ears),
        )
    if output.json:
        command_output.put_json(made)
        return made
    for name in made.files:
        command_output.put(str(Path(made.out) / name))
    for line in made.notes if output.verbose else summary.rewrites(made.rewrites):
        command_output.put(f"  {line}")
    if made.quantized is not None:
        command_output.put(f"  {coverage.share(made.quantized, precision)}")
        if why := coverage.reasons(made.quantized):
            ears.note(why)
    return made
