from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.execute.step import Input, Result, Step, always, beside_the_key, spread
from optkit.steps.sessions import Engines


@dataclass(frozen=True)
class InProcess:
    """The graph runs in the step's own process."""

    threads: int | None


@dataclass(frozen=True, kw_only=True)
class PeakMemory(Result):
    """`marks`: why the measurement was no good one."""

    bytes: int
    marks: tuple[str, ...] = always(())


@dataclass(frozen=True, kw_only=True)
class MeasurePeak(Step[PeakMemory]):
    """What loading a model and running it takes at its peak: a graph in the process's memory, an
    engine in its device's. `host`: what the machine is, for the key; `kept`: as of `Compile`."""

    name = "peak"
    version = 2
    tools = ("onnxruntime",)

    samples: Input
    graph: Input | None = None
    engine: Input | None = None
    running: Engines | InProcess = spread()
    batch: int
    host: Mapping[str, object]
    kept: Path | None = beside_the_key(None)
