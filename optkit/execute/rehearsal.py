"""A rehearsal of a build: which steps are in the store, which would run. Writes nothing.

The chain is the same; a step that is not in the store yields a Planned, and everything after it is
planned too (its key is unknown until its input exists).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optkit.errors import OptkitError
from optkit.execute import reads
from optkit.execute.local import Limits, environment
from optkit.execute.runner import Made, StepKind, done, key_of, memory_of, remembered
from optkit.execute.step import Input, R, Result, Step
from optkit.store import Entry, Store


@dataclass(frozen=True)
class Planned:
    """Stands for the entry of a step that has not run. It has no digest and no files."""

    step: str
    path: Path = Path("/nonexistent")
    digest: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        return self.path / name


@dataclass(frozen=True)
class Line:
    """One step of the plan. Seconds and bytes: of the same step in this store before, else None."""

    step: str
    label: str
    hit: bool
    seconds: float | None
    bytes: int | None


@dataclass
class Rehearsal:
    """Has a Runner's `step` and `step_reading_code`, and runs nothing. `objects`: a passing folder
    for the copies of foreign files, which have to be checked and hashed."""

    store: Store
    limits: Limits
    objects: Path
    lines: list[Line] = field(default_factory=list)
    _history: dict[str, list[tuple[float, int]]] | None = None

    def recalled(self, made: Made) -> bool:
        """What it has is from the store."""
        return isinstance(made.folder if isinstance(made, Result) else made, Entry)

    def note(self, text: str) -> None:
        """The build tells it; a rehearsal prints its plan."""

    def do(self, step: Step[R], label: str) -> R:
        return done(self, step, label)

    def step(
        self,
        kind: StepKind,
        label: str,
        inputs: Mapping[str, Input],
        params: dict[str, Any],
        here: Mapping[str, Any] | None = None,
    ) -> Entry | Planned:
        return self._look(
            kind, label, inputs, lambda: self.store.peek(key_of(kind, inputs, params))
        )

    def step_reading_code(
        self,
        kind: StepKind,
        label: str,
        inputs: Mapping[str, Input],
        params: dict[str, Any],
        here: Mapping[str, Any] | None = None,
        *,
        roots: Sequence[str] = (),
        anywhere: bool = False,
    ) -> Entry | Planned:
        def find() -> Entry | None:
            now = reads.Now(roots, environment())
            memory = memory_of(key_of(kind, inputs, params))
            for known in remembered(self.store.recall(memory)):
                if now.agrees(known["reads"]):
                    return self.store.peek(known["key"])
            return None

        return self._look(kind, label, inputs, find)

    def _look(
        self,
        kind: StepKind,
        label: str,
        inputs: Mapping[str, Input],
        find: Callable[[], Entry | None],
    ) -> Entry | Planned:
        known = not any(_is_planned(value) for value in inputs.values())
        try:
            found = find() if known else None
        except (OptkitError, OSError, ValueError, KeyError, TypeError):
            found = None  # corrupt: a real run would quarantine and rebuild it
        seconds, size = self._estimate(kind.name)
        if found is not None:
            self.lines.append(Line(kind.name, label, True, 0.0, 0))
            return found
        self.lines.append(Line(kind.name, label, False, seconds, size))
        return Planned(kind.name)

    def _estimate(self, step: str) -> tuple[float | None, int | None]:
        if self._history is None:
            self._history = self.store.history()
        past = self._history.get(step)
        if not past:
            return None, None
        return (
            round(statistics.median(seconds for seconds, _ in past), 1),
            int(statistics.median(size for _, size in past)),
        )


def _is_planned(value: Input) -> bool:
    return isinstance(value.folder if isinstance(value, Result) else value, Planned)
