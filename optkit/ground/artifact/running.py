"""A loaded artifact that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from optkit.facts.errors import UsageError
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.execute.proxy import by_name
from optkit.ground.runtimes import Loop, Recurrent


@dataclass(frozen=True)
class Running:
    """A loaded artifact as a Session, with the backend that runs and the evidence of its
    figures."""

    session: Recurrent
    backend: str
    evidence: Evidence  # measured: the target's own engine; simulated: its graph on another device
    note: str | None
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    batch: int | None = None  # the largest batch of the engine; None: any

    @classmethod
    def of(
        cls,
        session: Recurrent,
        backend: str,
        evidence: Evidence,
        note: str | None,
        batch: int | None = None,
    ) -> Self:
        return cls(session, backend, evidence, note, session.inputs, session.outputs, batch)

    def run(self, feed: Feed) -> Feed:
        """Outputs for one feed. A batch that is larger than the engine's largest one runs in
        parts, and the outputs are joined."""
        arrays = by_name(feed, [info.name for info in self.inputs])
        rows = {len(array) if array.ndim else 0 for array in arrays.values()}
        if self.batch is None or len(rows) != 1 or max(rows) <= self.batch:
            return self.session.run(arrays)
        parts = [
            self.session.run({name: array[i : i + self.batch] for name, array in arrays.items()})
            for i in range(0, max(rows), self.batch)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def loop(self, carried: Mapping[str, str], start: Feed, room: int | None = None) -> Loop:
        return self.session.loop(carried, start, room)

    def close(self) -> None:
        self.session.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise UsageError(
            "a session cannot be copied or sent to another process",
            hint="open one there: optkit.load(path).session(); the artifact itself may be copied",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
