from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.facts.measurement import Conditions, Difference, Latency
from optkit.ground.execute.step import Step, StepInput, StepResult, always, beside_the_key
from optkit.road.steps.sessions import CpuSession, DeviceSession


@dataclass(frozen=True)
class BenchSide:
    """The place of a model (`input`: the input of the step; `file`: the file in it), and how the
    model is run."""

    input: str
    file: str
    backend: str
    session: CpuSession | DeviceSession


@dataclass(frozen=True)
class TimedPair:
    """Candidate and baseline at one batch size. The single runs are in the file of times."""

    engine: Latency
    baseline: Latency
    speedup: Difference

    @property
    def marked(self) -> bool:
        return bool(self.engine.marks or self.baseline.marks)


@dataclass(frozen=True, kw_only=True)
class BenchResult(StepResult):
    """`conditions`: the state of the machine during the run."""

    rows: tuple[TimedPair, ...] = always(())
    conditions: Conditions = always(Conditions())

    @property
    def marked(self) -> bool:
        """Whether the run has a mark, which says why it is not reliable."""
        return any(row.marked for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class MeasureLatency(Step[BenchResult]):
    """Latency of candidate and baseline, interleaved in one process that runs nothing else.

    `models`: the inputs that `sides` ("engine", "baseline") name; `gpu`: whether they run on a GPU;
    `host`: the device, for the key and for its name; `kept`: as in `Compile`. `marked`: the number
    of earlier runs under bad conditions; `at`: the time of the measurement, so that no earlier
    result is used.
    """

    name = "bench"
    version = 5
    tools = ("onnxruntime", "numpy")

    samples: StepInput
    models: Mapping[str, StepInput]
    batches: tuple[int, ...]
    seconds: float
    warmup_seconds: float
    sides: Mapping[str, BenchSide]
    gpu: bool
    host: Mapping[str, object]
    marked: str | None = None
    at: str | None = None
    kept: Path | None = beside_the_key(None)
