"""`optkit explain`: why an artifact is not faster, and why its accuracy fell."""

from __future__ import annotations

from pathlib import Path

from optkit.ground.workspace import Workspace
from optkit.show.report.explanation_page import to_html
from optkit.verbs import api
from optkit.verbs.cli import api_calls, command_output, explained, result_files
from optkit.verbs.cli.command_output import Output


def explain(
    artifact: Path, apply: Path | None, html: Path | None, workspace: Workspace, output: Output
) -> None:
    with output.terminal() as ears:
        own = api_calls.reporting(workspace, ears)
        found = api.explain(artifact, apply=apply, workspace=own)
    if html is not None:
        result_files.write(html, to_html(found))
    if output.json:
        command_output.put_json(found)
    else:
        command_output.put_figures(explained.text(found))
