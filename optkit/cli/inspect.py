"""`optkit inspect`: what an artifact or an ONNX file holds."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.cli import options
from optkit.workspace import Workspace


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@options.work
@options.output
def inspect(path: Path, workspace: Workspace, output: options.Output) -> None:
    """Show what PATH holds: an artifact (a folder) or a model.onnx.

    It shows inputs, operators, parameters, bytes, MACs and precision. For an artifact it first
    verifies every file, and also shows the verdict, evidence and landing.

    The limits on memory and time follow from the size of the graph; --memory and --timeout replace
    them.
    """
    from optkit import api
    from optkit.cli import summary, terminal

    with output.terminal() as ears:
        found = api.inspect(path, workspace=options.reporting(workspace, ears))
    if output.json:
        terminal.put_json(found)
    else:
        terminal.put(summary.inspection(found))
