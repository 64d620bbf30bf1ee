"""An executor that has several machines, as those who give it work see it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from optkit.execute.local import Progress
from optkit.execute.transfer import Ground

R = TypeVar("R")

Call = Callable[[dict[str, Any], Ground], dict[str, Any]]
"""What a node may be asked to do: JSON in, JSON {"meta"} out."""


@runtime_checkable
class Cluster(Protocol):
    """`execute.ray.RayCluster` is one; a Runner has it as its `executor`."""

    def cores(self) -> int:
        """CPUs of all nodes that get tasks."""

    def accelerators(self) -> dict[str, int]:
        """Label of an accelerator → number of nodes that have it."""

    def label(self, device: str) -> str:
        """The label of a device whose driver calls it so: "NVIDIA L4" → "L4"."""

    def each(
        self, function: Callable[..., R], *items: Sequence[Any], parallel: int | None = None
    ) -> list[R]:
        """`map`, with as many calls at the same time as there are cores, or `parallel`."""

    def call(
        self,
        function: Call,
        argument: dict[str, Any],
        *,
        device: str | None = None,
        heard: Progress = lambda what, fraction: None,
        ended: threading.Event | None = None,
    ) -> dict[str, Any]:
        """Have a node call `function(argument, ground)`, JSON in and out: its answer {"meta"}."""
