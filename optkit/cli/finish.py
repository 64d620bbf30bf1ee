"""`optkit finish`: what a build had to leave to a host with the device."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.cli import options
from optkit.cli.build import exit_code, suites_of, write_junit
from optkit.workspace import Workspace


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--eval",
    "task",
    metavar="NAME|FILE.py",
    help="A task with its samples, instead of those in the artifact.",
)
@options.strict
@options.junit
@options.work
@options.output
def finish(
    artifact: Path,
    task: str | None,
    strict: bool,
    junit: Path | None,
    workspace: Workspace,
    output: options.Output,
) -> int:
    """Complete ARTIFACT on this machine, which has its device: compile what is pending, measure
    latency and accuracy, check the gates again. It replaces the artifact in one operation.
    """
    from optkit import api
    from optkit.cli import github, summary, terminal
    from optkit.report.contract import result_of

    with output.terminal() as ears:
        own = options.reporting(workspace, ears)
        result = result_of(api.finish(artifact, task=task, strict=strict, workspace=own))
    if junit is not None:
        write_junit(junit, suites_of([result]), strict=strict)
    if output.json:
        terminal.put_json(result.to_json())
    else:
        terminal.put(summary.table([result]))
    github.summarize(github.reports([result]))
    for remark in summary.remarks(result):
        ears.note(f"{result.target} {result.precision}: {remark}")
    return exit_code(result, strict)
