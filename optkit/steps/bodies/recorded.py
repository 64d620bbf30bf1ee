"""The recording of what the user's code reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from optkit.data import reads
from optkit.execute.step import ReadsCode, Result, Step


def recorded(
    step: Step[Result], out: Path, code: Sequence[Path] = ()
) -> AbstractContextManager[reads.Reads]:
    """A recording for a step. It leaves out the files of the store and the files that the step
    writes, because the key covers them. `code`: folders from which the step's modules may
    be imported, the first one first."""
    assert isinstance(step, ReadsCode)
    inputs = [each.path for each in step.inputs.values()]
    store = [] if step.store is None else [step.store]
    return reads.record(code, roots=step.roots, ignored=[out, *inputs, *store])
