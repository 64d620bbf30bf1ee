"""`optkit explain`: why an artifact is not faster, and why its accuracy fell."""

from __future__ import annotations

from pathlib import Path

import click

from optkit.cli import options
from optkit.workspace import Workspace


@click.command()
@click.argument("artifact", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--apply", type=click.Path(path_type=Path), metavar="RECIPE",
              help="Write the recipe with these changes to this new file.")  # fmt: skip
@options.work
@options.output
def explain(
    artifact: Path, apply: Path | None, workspace: Workspace, output: options.Output
) -> None:
    """Say why ARTIFACT is not faster, and why its accuracy fell; the most costly finding first.

    Each finding has its cost, the evidence for it, and a change that would help: a line of the
    recipe, if a recipe can express it.
    """
    from optkit import api
    from optkit.cli import explained, terminal
    from optkit.documents.explanation import Explained

    with output.terminal() as ears:
        own = options.reporting(workspace, ears)
        found = api.explain(artifact, apply=apply, workspace=own)
    if output.json:
        terminal.put_json(found)
    else:
        terminal.put(explained.text(Explained.from_json(found)))
