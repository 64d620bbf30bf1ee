"""The comparison of two artifacts, graphs or reports: `diff`."""

from __future__ import annotations

from pathlib import Path

from optkit.facts.documents.diff import Diff
from optkit.ground.workspace import Workspace
from optkit.satellites import difference


def diff(a: str | Path, b: str | Path, *, workspace: Workspace = Workspace()) -> Diff:
    """The differences between two artifacts, .onnx files, reports or results of builds.

    It reports a difference of latency or accuracy only if the
    intervals support it (`seen`). Raises InputRefused (a file of another kind, or two files that
    cannot be compared), IntegrityError (a damaged artifact), and what reading a graph raises.
    """
    return difference.diff(Path(a), Path(b), workspace.runner())
