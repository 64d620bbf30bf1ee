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

    Inputs, operators, parameters, bytes, MACs, precision; for an artifact also its verdict,
    evidence and landing, after every file was verified.

    What reading a graph may take is bounded by its size, unless --memory or --timeout is given.
    """
    from optkit import api
    from optkit.cli import summary, terminal

    with output.terminal() as ears:
        found = api.inspect(path, workspace=options.reporting(workspace, ears))
    if output.json:
        terminal.put_json(found)
    else:
        terminal.put(summary.inspection(found))
