"""Two artifacts, graphs or reports compared: `diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optkit import difference
from optkit.workspace import Workspace


def diff(a: str | Path, b: str | Path, *, workspace: Workspace = Workspace()) -> dict[str, Any]:
    """What differs between two artifacts, .onnx files, reports or results of builds.

    Returns an optkit.diff/v1 object. A difference of latency or accuracy is claimed only where the
    intervals allow it (`seen`). Raises InputRefused (a file of another kind, or two that cannot be
    compared), IntegrityError (a damaged artifact), and what reading a graph raises.
    """
    return difference.diff(Path(a), Path(b), workspace.runner()).to_json()
