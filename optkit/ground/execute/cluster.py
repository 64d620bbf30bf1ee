"""The interface of an executor with several machines, for the code that gives it tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from optkit.ground.execute.step import Progress
from optkit.ground.execute.task import silent
from optkit.ground.execute.transfer import Call, RemoteCall

R = TypeVar("R")


@runtime_checkable
class Cluster(Protocol):
    """`execute.ray.RayCluster` is one; a Runner has it as its `executor`."""

    def cores(self) -> int:
        """CPUs of all nodes that get tasks."""

    def accelerators(self) -> dict[str, int]:
        """Label of an accelerator → number of nodes that have this accelerator."""

    def label(self, device: str) -> str:
        """The label of the device that its driver reports under this name: "NVIDIA L4" → "L4"."""

    def each(
        self, function: Callable[..., R], *items: Sequence[object], parallel: int | None = None
    ) -> list[R]:
        """As `map`, with `parallel` calls at the same time; None: as many as there are cores."""

    def call(
        self,
        function: Call,
        argument: RemoteCall,
        *,
        device: str | None = None,
        heard: Progress = silent,
        ended: threading.Event | None = None,
    ) -> object:
        """Let a node call `function(argument, ground)`, and return the JSON of its result."""
