"""`optkit finish`: what a build had to leave to a host with the device."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.cli import options
from optkit.cli.build import exit_code, gates_of, write_junit
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

    with output.terminal() as ears:
        own = options.reporting(workspace, ears)
        made = api.finish(artifact, task=task, strict=strict, workspace=own)
    if junit is not None:
        write_junit(junit, gates_of([made.result]), strict=strict)
    if output.json:
        terminal.put_json(made.result)
    else:
        terminal.put(summary.table([made.result]))
    github.summarize(github.reports([made.result]))
    for remark in summary.remarks(made.result):
        ears.note(f"{made.result['target']} {made.result['precision']}: {remark}")
    return exit_code(made.result, strict)
