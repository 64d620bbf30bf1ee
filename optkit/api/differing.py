"""Two artifacts, graphs or reports compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optkit import difference as diffing
from optkit.api import request
from optkit.execute.runner import Listener, Runner


def diff(
    a: str | Path,
    b: str | Path,
    *,
    cache: str | Path | None = None,
    memory: int | None = None,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """What differs between two artifacts, .onnx files or reports: an object `optkit.diff/v1`.

    A difference of latency or accuracy is claimed only where the intervals allow it (`seen`).
    memory: bytes a step may use. Raises OptkitError subclasses.
    """
    runner = request.open_runner(
        cache=None if cache is None else Path(cache), memory=memory, timeout=None, listener=listener
    )
    return diff_one(Path(a), Path(b), runner=runner)


def diff_one(a: Path, b: Path, *, runner: Runner) -> dict[str, Any]:
    """`diff` as the command line asks for it."""
    return diffing.diff(a, b, runner)
