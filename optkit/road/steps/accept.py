from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput, StepResult


@dataclass(frozen=True, kw_only=True)
class Accept(Step[StepResult]):
    """Check that the compiler knows all operators of a graph, before any work on the graph.
    `versions`: those of the backend's library."""

    name = "accept"
    version = 2

    graph: StepInput
    backend: str
    versions: Mapping[str, str]
