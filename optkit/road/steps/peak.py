from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.ground.execute.step import Step, StepInput, StepResult, always, beside_the_key, spread
from optkit.road.steps.sessions import Engines


@dataclass(frozen=True)
class InProcess:
    """The graph runs in the step's own process."""

    threads: int | None


@dataclass(frozen=True, kw_only=True)
class PeakMemory(StepResult):
    """`marks`: the reasons why the measurement is not reliable."""

    bytes: int
    marks: tuple[str, ...] = always(())


@dataclass(frozen=True, kw_only=True)
class MeasurePeak(Step[PeakMemory]):
    """The peak of memory that loading and running a model takes: a graph in the memory of the
    process, an engine in the memory of its device. `host`: this machine, for the key; `kept`: as in
    `Compile`."""

    name = "peak"
    version = 2
    tools = ("onnxruntime",)

    samples: StepInput
    graph: StepInput | None = None
    engine: StepInput | None = None
    running: Engines | InProcess = spread()
    batch: int
    host: Mapping[str, object]
    kept: Path | None = beside_the_key(None)
