"""How what the user's code reads is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optkit.execute.step import ReadsCode, Step


def recording(step: Step[Any], out: Path) -> dict[str, Any]:
    """Arguments of `data.reads.record`. What lies in the store, and what the step writes, is told
    elsewhere."""
    assert isinstance(step, ReadsCode)
    inputs = [one.path for one in step.inputs.values()]
    store = [] if step.store is None else [step.store]
    return {"roots": step.roots, "ignored": [out, *inputs, *store]}
