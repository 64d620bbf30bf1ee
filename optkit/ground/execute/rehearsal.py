"""A rehearsal of a build: which steps are in the store, and which would run. It writes nothing.

The chain of steps is the same. A step that is not in the store returns a PlannedResult, and all
steps after it are planned too (their keys are unknown until their inputs exist). A step with the
user's code runs, unless what it depends on is declared and unchanged; the steps after it are shown
for the case that the code yields what it yielded last time.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from optkit.facts.errors import OptkitError
from optkit.facts.listed_steps import Line
from optkit.ground.execute.runner import key_of, memory_of, runs_code, yielded
from optkit.ground.execute.step import PlannedResult, R, RunsCode, Step, StepInput, StepResult
from optkit.ground.execute.task import TaskLimits
from optkit.ground.store import Entry, Store


@dataclass
class Rehearsal:
    """A rehearsal has the method `do` of a Runner, and runs nothing. `objects`: a temporary folder
    for copies of foreign files, which must be checked and hashed; `fresh`: as in Runner."""

    store: Store
    limits: TaskLimits
    objects: Path
    fresh: bool = False
    lines: list[Line] = field(default_factory=list)
    _history: dict[str, list[tuple[float, int]]] | None = None

    def recalled(self, result: StepResult) -> bool:
        """Whether the result is in the store; this is true for every result that a rehearsal
        has."""
        return isinstance(result.folder, Entry)

    def note(self, text: str) -> None:
        """Ignored: a rehearsal prints only its plan."""

    def tell_cost(self) -> None:
        """No code runs."""

    def do(self, step: Step[R], label: str) -> R:
        known = not any(_is_planned(value) for value in step.inputs.values())
        try:
            entry = self._entry(step) if known else None
        except (OptkitError, OSError, ValueError, KeyError, TypeError):
            entry = None  # corrupt: a real run would quarantine the entry and run the step again
        hit = entry is not None and not self._runs(step)
        seconds, size = (0.0, 0) if hit else self._estimate(step)
        self.lines.append(Line(step.name, label, hit, seconds, size))
        return step.result(PlannedResult() if entry is None else entry)

    def _entry(self, step: Step[StepResult]) -> Entry | None:
        if not runs_code(step):
            return self.store.peek(key_of(step))
        last = yielded(self.store.recall(memory_of(step)))
        return None if last is None else self.store.peek(last)

    def _runs(self, step: Step[StepResult]) -> bool:
        """Whether the step runs although its last result is known."""
        return runs_code(step) and (
            self.fresh or (isinstance(step, RunsCode) and step.depends is None)
        )

    def _estimate(self, step: Step[StepResult]) -> tuple[float | None, int | None]:
        if self._history is None:
            self._history = self.store.history()
        past = self._history.get(step.name)
        if not past or step.limit_seconds:
            return None, None
        return (
            round(statistics.median(seconds for seconds, _ in past), 1),
            int(statistics.median(size for _, size in past)),
        )


def _is_planned(value: StepInput) -> bool:
    return value.planned if isinstance(value, StepResult) else isinstance(value, PlannedResult)
