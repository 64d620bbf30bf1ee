"""Steps of our own code alone share a worker: the next of them runs where the one before ended, and
is spared the interpreter's start and its imports (0.6 s).

A step that runs the user's code, compiles or takes times has a worker of its own, as has whatever
follows a failure or a step that left much behind.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path

from optkit.execute import local
from optkit.execute.local import Child
from optkit.execute.step import Progress
from optkit.execute.task import Limits, Task, silent

_LEFT = 8  # a worker stays while it holds less than this part of the memory it may take


class Workers:
    """`run` of `local`, but that tasks that stay may share a child.

    It ends with this object, with the program, or before a task that must be alone.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._end = weakref.finalize(self, _nothing)

    def __call__(
        self,
        task: Task,
        limits: Limits,
        progress: Progress = silent,
        *,
        scratch_root: Path | None = None,
    ) -> Mapping[str, object]:
        if not task.stays:
            self.close()  # what it holds would come on top
            return local.run(task, limits, progress, scratch_root=scratch_root)
        if self._child is not None and not self._child.resident:
            self.close()  # it died with the thread that had started it
        if self._child is None:
            self._child = Child(scratch_root=scratch_root, stays=True)
            self._end = weakref.finalize(self, self._child.end)
        try:
            meta = self._child.perform(task, limits, progress)
        except BaseException:
            self.close()
            raise
        if not 0 < self._child.resident * _LEFT < limits.memory_bytes:
            self.close()
        return meta

    def close(self) -> None:
        self._end()
        self._child = None


def _nothing() -> None:
    """There is no child to end."""
