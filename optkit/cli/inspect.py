"""`optkit inspect`: what an artifact or an ONNX file holds."""

from __future__ import annotations

from pathlib import Path

from optkit import api
from optkit.cli import calls, summary, terminal
from optkit.cli.terminal import Output
from optkit.workspace import Workspace


def inspect(path: Path, workspace: Workspace, output: Output) -> None:
    with output.terminal() as ears:
        found = api.inspect(path, workspace=calls.reporting(workspace, ears))
    if output.json:
        terminal.put_json(found)
    else:
        terminal.put(summary.inspection(found))
