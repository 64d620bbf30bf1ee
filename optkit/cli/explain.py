"""`optkit explain`: why an artifact is not faster, and why its accuracy fell."""

from __future__ import annotations

from pathlib import Path

from optkit import api
from optkit.cli import calls, explained, files, terminal
from optkit.cli.terminal import Output
from optkit.report.explanation import to_html
from optkit.workspace import Workspace


def explain(
    artifact: Path, apply: Path | None, html: Path | None, workspace: Workspace, output: Output
) -> None:
    with output.terminal() as ears:
        own = calls.reporting(workspace, ears)
        found = api.explain(artifact, apply=apply, workspace=own)
    if html is not None:
        files.write(html, to_html(found))
    if output.json:
        terminal.put_json(found)
    else:
        terminal.put(explained.text(found))
