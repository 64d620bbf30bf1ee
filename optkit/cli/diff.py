"""`optkit diff`: the comparison of two artifacts, graphs or reports."""

from __future__ import annotations

from pathlib import Path

from optkit import api
from optkit import difference as diffing
from optkit.cli import calls, files, terminal
from optkit.cli.terminal import Output
from optkit.report.diff import to_html
from optkit.workspace import Workspace


def diff(
    a: Path, b: Path, exit_code: bool, html: Path | None, workspace: Workspace, output: Output
) -> int:
    with output.terminal() as ears:
        found = api.diff(a, b, workspace=calls.reporting(workspace, ears))
    if html is not None:
        files.write(html, to_html(found))
    if output.json:
        terminal.put_json(found)
    else:
        terminal.put(diffing.to_text(found))
    return int(exit_code and not found.same)
