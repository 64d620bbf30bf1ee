"""Runs the steps of all rows without a new interpreter for each: imports take most of the time of
a row. The export runs in this process, other steps in one worker that stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optkit.ground.execute.local import Child
from optkit.ground.execute.step import Progress
from optkit.ground.execute.task import Task, TaskLimits, silent
from optkit.road.steps import perform


class Shared:
    """An Executor. `close` ends its worker."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._child: Child | None = None

    def __call__(
        self,
        task: Task,
        limits: TaskLimits,
        progress: Progress = silent,
        *,
        scratch_root: Path | None = None,
    ) -> Mapping[str, object]:
        if task.step == "export":
            inputs = {name: Path(path) for name, path in task.inputs.items()}
            return perform(task.step, inputs, task.params, Path(task.out), progress)
        if self._child is None:
            self._child = Child(scratch_root=self._scratch, stays=True)
        try:
            return self._child.perform(task, limits, progress)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
