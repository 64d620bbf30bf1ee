"""How a step runs a model: on this machine's CPU, or as an engine on its device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.facts.codec import later
from optkit.ground.operator_library import OperatorLibrary
from optkit.ground.runtimes import SessionOptions


@dataclass(frozen=True)
class CpuSession:
    threads: int | None
    spinning: bool = False

    def options(self, kept: Path | None = None) -> SessionOptions:
        return SessionOptions(self.threads, self.spinning, kept=kept)


@dataclass(frozen=True)
class DeviceSession:
    """`cuda_graph`: None if the caller leaves the choice to the backend; the key never contains
    it. `plugins`: the library that the engine needs."""

    target: str
    cuda_graph: bool | None = later(None)
    plugins: OperatorLibrary | None = later(None)

    def options(self, kept: Path | None = None) -> SessionOptions:
        return SessionOptions(
            target=self.target, cuda_graph=bool(self.cuda_graph), kept=kept, plugins=self.plugins
        )


@dataclass(frozen=True)
class Engines:
    """Engines that run on their device instead of graphs. `engines`: input of the step → the
    engine's file in it."""

    backend: str
    engines: Mapping[str, str]
    session: DeviceSession
