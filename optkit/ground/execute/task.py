"""The messages to and from a worker, in JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self

from optkit.facts.codec import from_json, to_json
from optkit.facts.errors import OptkitError
from optkit.ground.execute.step import Progress

_SCHEMA = "optkit.worker/v1"


def silent(what: str, fraction: float) -> None:
    """A progress function that does nothing."""


@dataclass(frozen=True)
class TaskLimits:
    """Limits of one task: resident memory of its process tree, wall-clock time, bytes of log.
    `chosen`: the user has set the time, so it holds for every step; otherwise a step may have a
    longer one of its own."""

    memory_bytes: int
    seconds: float = 3600.0
    output_bytes: int = 64 * 2**20
    chosen: bool = False

    def of(self, seconds: float) -> Self:
        """The limits of a step that may take so long."""
        return self if self.chosen else replace(self, seconds=max(self.seconds, seconds))


@dataclass(frozen=True)
class Task:
    """A step to run. `inputs`: the path of each input; `params`: the other fields of the step, as
    JSON; `out`: the folder for its files. `stays`, `versions`: see `Step.shares_worker` and
    `Step.tools`; `shards`: whether it can be done in parts; `here`: whether it needs
    code or files that only this machine has; `variables`: those of the environment that the user's
    code also gets."""

    step: str
    inputs: Mapping[str, str]
    params: Mapping[str, object]
    out: str
    stays: bool = False
    shards: bool = False
    here: bool = False
    variables: tuple[str, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)


class Executor(Protocol):
    """Runs a task within limits and returns the facts of the step's result, as JSON.
    `execute.warm_workers.Workers` does this in a child process."""

    def __call__(
        self,
        task: Task,
        limits: TaskLimits,
        progress: Progress = silent,
        *,
        scratch_root: Path | None = None,
    ) -> Mapping[str, object]: ...


@dataclass(frozen=True)
class Order:
    """A task for a worker. `result`: the file for the answer; `progress`: the descriptor of a pipe
    (-1: none); `pipes`: the pipes of a worker that serves a session (`execute.proxy`)."""

    task: Task
    result: Path
    progress: int = -1
    pipes: tuple[int, int] | None = None

    @classmethod
    def read(cls, file: Path) -> Self:
        return from_json(cls, json.loads(file.read_bytes()))

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(to_json(self)))


@dataclass(frozen=True)
class Answer:
    """`meta`, the facts of the step's result, or the error of `OptkitError.to_json`."""

    meta: Mapping[str, object] | None = None
    error: Mapping[str, str | None] | None = None
    schema: str = _SCHEMA

    @classmethod
    def of(cls, error: OptkitError) -> Self:
        return cls(error=error.to_json())

    @classmethod
    def read(cls, file: Path) -> Self:
        """The object in the file; an empty one if there is no file, or a file of another form."""
        try:
            answer = from_json(cls, json.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls()
        return answer if answer.schema == _SCHEMA else cls()

    def write(self, file: Path) -> None:
        """Write the file in one operation, so that a reader never sees a part of it."""
        temporary = file.with_suffix(".part")
        temporary.write_text(json.dumps(to_json(self)))
        temporary.replace(file)
