"""The CPU seconds of each step of a command: those of its worker, with the start of a new one.

    taskset -c 1 python experiments/build_time/steps.py OUT.json build w3.onnx --target cpu …

`shared`: the step ran in the worker of the step before. To compare two versions of optkit, run both
at the same time on one core (`PYTHONPATH`): other work on the machine changes CPU seconds.
"""

from __future__ import annotations

import json
import platform
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from optkit.cli import main
from optkit.devices import cpu
from optkit.execute.local import Child
from optkit.execute.step import Progress
from optkit.execute.task import Limits, Task
from optkit.pipeline import tool_versions

Rows = list[dict[str, object]]


class Watched:
    """`Child.perform`, which adds a row for each step."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._perform = rows, Child.perform

    def install(self) -> None:
        def perform(
            child: Child, task: Task, limits: Limits, progress: Progress, *more: None
        ) -> Mapping[str, object]:
            before, new = _spent(child), child._process is None
            try:
                return self._perform(child, task, limits, progress, *more)
            finally:
                seconds = round(_spent(child) - before, 2)
                self._rows.append({"step": task.step, "shared": not new, "cpu_s": seconds})

        Child.perform = perform  # type: ignore[method-assign,assignment]


def _spent(child: Child) -> float:
    """CPU seconds of all processes that have ended, and of this one if it is alive."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    if child._process is not None and child._process.poll() is None:
        alive = psutil.Process(child._process.pid).cpu_times()
        total += alive.user + alive.system
    return total


def run(out: Path, arguments: list[str]) -> None:
    """Run the command, which ends this process, and write its steps."""
    rows: Rows = []
    Watched(rows).install()
    try:
        main(arguments)
    finally:
        told = {
            "cpu": cpu().name, "features": list(cpu().features),
            "versions": {"python": platform.python_version(), **tool_versions()},
            "steps": rows, "command_cpu_s": round(time.process_time(), 2),
        }  # fmt: skip
        out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
