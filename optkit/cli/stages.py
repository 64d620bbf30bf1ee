"""The stages one at a time: `export`, `fuse`, `quantize`, `compile`, `eval`.

Each runs the chain of `build` as far as it is asked, through the same store, and shows that result.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optkit.cli import options
from optkit.request import Request
from optkit.workspace import Workspace

if TYPE_CHECKING:
    from optkit.api.stages import Stage, StageFiles


def _pair(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--precision", default="int8", show_default=True, metavar="NAME")(
        function
    )
    return click.option("--target", required=True, metavar="NAME", help="A device.")(function)


def _out(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR",
                        help="Folder for the files; must not exist yet.")(function)  # fmt: skip


@click.command()
@options.job
@_out
@options.work
@options.output
def export(out: Path, request: Request, workspace: Workspace, output: options.Output) -> None:
    """Export MODEL to ONNX (opset 21 or newer), and compare its outputs with those of MODEL."""
    _files("export", out, request, workspace, output)


@click.command()
@options.job
@_out
@options.work
@options.output
def fuse(out: Path, request: Request, workspace: Workspace, output: options.Output) -> None:
    """Fuse the graph of MODEL into its `standard` form, and log each rule applied or declined.

    Each rule has a line, and each reason for declining; --verbose and --json name every node.
    """
    _files("fuse", out, request, workspace, output)


@click.command()
@options.job
@_pair
@_out
@options.strict
@options.work
@options.output
def quantize(
    out: Path,
    target: str,
    precision: str,
    strict: bool,
    request: Request,
    workspace: Workspace,
    output: options.Output,
) -> int:
    """Quantize MODEL to a Q/DQ graph, by the placement rules of the target's backend."""
    from optkit.cli.summary import is_suspect

    made = _files("quantize", out, request, workspace, output, target, precision)
    return 3 if strict and is_suspect(made.calibration) else 0


@click.command("compile")
@options.job
@_pair
@_out
@options.work
@options.output
def compile_(
    out: Path,
    target: str,
    precision: str,
    request: Request,
    workspace: Workspace,
    output: options.Output,
) -> None:
    """Compile MODEL to an engine for the target, and list its fused layers and landing."""
    _files("compile", out, request, workspace, output, target, precision)


@click.command("eval")
@options.job
@_pair
@options.strict
@options.junit
@options.work
@options.output
def eval_(
    target: str,
    precision: str,
    strict: bool,
    junit: Path | None,
    request: Request,
    workspace: Workspace,
    output: options.Output,
) -> int:
    """Measure task score, drop against the baseline and fidelity to FP32, and check their gates.

    With --set eval.stop_early=true it stops before the last sample, once the verdict is certain.
    """
    from optkit import api
    from optkit.cli import summary, terminal
    from optkit.cli.build import write_junit
    from optkit.documents.figures import EvalFigures
    from optkit.report.junit import Suite

    with output.terminal() as ears:
        made = api.evaluate(
            recipe=options.recipe(request, workspace, output),
            target=target,
            precision=precision,
            strict=strict,
            workspace=options.reporting(workspace, ears),
        )
    figures = EvalFigures.from_json(made)
    gate = figures.gate
    if junit is not None:
        write_junit(junit, [Suite.of_scores(figures)], strict=strict)
    if output.json:
        status = "gate_failed" if gate.verdict == "fail" else "ok"
        terminal.put_json({"schema": "optkit.eval/v1", "status": status, **made})
    else:
        terminal.put(summary.scores(figures))
    for reason in gate.reasons:
        ears.note(reason)
    doubtful = gate.verdict != "pass" or summary.is_suspect(figures.calibration)
    return 3 if gate.verdict == "fail" or (strict and doubtful) else 0


def _files(
    stage: Stage,
    out: Path,
    request: Request,
    workspace: Workspace,
    output: options.Output,
    target: str = "cpu",
    precision: str = "fp32",
) -> StageFiles:
    from dataclasses import asdict

    from optkit import api
    from optkit.cli import summary, terminal

    with output.terminal() as ears:
        made = api.stage_files(
            stage,
            recipe=options.recipe(request, workspace, output),
            target=target,
            precision=precision,
            out=out,
            workspace=options.reporting(workspace, ears),
        )
    if output.json:
        check = made.calibration.to_json() if made.calibration else None
        written = {**asdict(made), "calibration": check}
        terminal.put_json({"schema": f"optkit.{stage}/v1", "status": "ok", **written})
        return made
    for name in made.files:
        terminal.put(str(Path(made.out) / name))
    for line in made.notes if output.verbose else summary.rewrites(made.details):
        terminal.put(f"  {line}")
    return made
