"""`optkit diff`: the comparison of two artifacts, graphs or reports."""

from __future__ import annotations

from pathlib import Path

from optkit.ground.workspace import Workspace
from optkit.satellites import difference as diffing
from optkit.show.report.diff_page import to_html
from optkit.verbs import api
from optkit.verbs.cli import api_calls, command_output, result_files
from optkit.verbs.cli.command_output import Output


def diff(
    a: Path, b: Path, exit_code: bool, html: Path | None, workspace: Workspace, output: Output
) -> int:
    with output.terminal() as ears:
        found = api.diff(a, b, workspace=api_calls.reporting(workspace, ears))
    if html is not None:
        result_files.write(html, to_html(found))
    if output.json:
        command_output.put_json(found)
    else:
        command_output.put_figures(diffing.to_text(found))
    return int(exit_code and not found.same)
