"""`optkit diff`: two artifacts, graphs or reports side by side."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.cli import options
from optkit.workspace import Workspace


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--exit-code", is_flag=True, help="Exit 1 if they differ, as git does.")
@options.work
@options.output
def diff(a: Path, b: Path, exit_code: bool, workspace: Workspace, output: options.Output) -> int:
    """Compare A and B: artifacts, .onnx files, report.json files or results of builds.

    Of graphs: nodes, precision, weights and scales. Of builds: latency, accuracy and sizes; a
    difference is reported only if the intervals support it. Also recipe, data and versions.
    """
    from optkit import api
    from optkit import difference as diffing
    from optkit.cli import terminal
    from optkit.documents.diff import Diff

    with output.terminal() as ears:
        found = api.diff(a, b, workspace=options.reporting(workspace, ears))
    if output.json:
        terminal.put_json(found)
    else:
        terminal.put(diffing.to_text(Diff.from_json(found)))
    return int(exit_code and not found["same"])
