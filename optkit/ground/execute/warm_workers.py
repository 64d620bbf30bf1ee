"""Steps that run only optkit's code share a worker. The next step runs in the worker of the step
before, which saves the start of the interpreter and its imports (0.6 s).

A step that runs the user's code, uses a compiler, or measures time gets a new worker, and the
shared one sleeps meanwhile. A step after a failure, and a step after one that left much memory
allocated, get a new worker too.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path

from optkit.ground.execute import local
from optkit.ground.execute.local import Child
from optkit.ground.execute.step import Progress
from optkit.ground.execute.task import Task, TaskLimits, silent

# a worker sleeps until the next step if it holds less than this part of its memory limit, because
# its memory adds to that of the steps that run alone
_LEFT = 8


class Workers:
    """As `local.run`, but tasks with `stays` may share a child process.

    The child ends with this object, or with the program.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._end = weakref.finalize(self, _nothing)

    def __call__(
        self,
        task: Task,
        limits: TaskLimits,
        progress: Progress = silent,
        *,
        scratch_root: Path | None = None,
    ) -> Mapping[str, object]:
        if not task.stays:
            return local.run(task, limits, progress, scratch_root=scratch_root)
        if self._child is not None and not self._child.resident:
            self.close()  # it ended with the thread that had started it
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
    """Stands for the end of a child while there is none."""
