"""`optkit explain`: why an artifact is not faster, and why its accuracy fell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from optkit.cli import options


@click.command()
@click.argument("artifact", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--apply", type=click.Path(path_type=Path), metavar="RECIPE",
              help="A new file that gets the recipe with the changes.")  # fmt: skip
@options.work
@options.output
def explain(artifact: Path, apply: Path | None, **shared: Any) -> None:
    """Why ARTIFACT is not faster, and why its accuracy fell: the most costly first.

    Each finding says what it costs, how that is known, and what would mend it: a line of the
    recipe, where one can say it.
    """
    from optkit import api
    from optkit.cli import explained, terminal

    request = options.gather(shared)
    with request.terminal() as ears:
        workspace = options.workspace(request, ears)
        found = api.explain(artifact, apply=apply, workspace=workspace)
    if request.json:
        terminal.put_json(found)
    else:
        terminal.put(explained.text(found))
