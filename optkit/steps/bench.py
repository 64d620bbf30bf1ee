from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.execute.step import Input, Result, Step, always, beside_the_key
from optkit.measurement import Conditions, Difference, Latency
from optkit.steps.sessions import CpuSession, DeviceSession


@dataclass(frozen=True)
class Side:
    """Where a model is (`input`: the step's; `file`: in it) and how it is run."""

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
class Timed(Result):
    """`conditions`: those of the machine meanwhile."""

    rows: tuple[TimedPair, ...] = always(())
    conditions: Conditions = always(Conditions())

    @property
    def marked(self) -> bool:
        """Whether something speaks against the run."""
        return any(row.marked for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class MeasureLatency(Step[Timed]):
    """Latency of candidate and baseline, interleaved, in a process of their own.

    `models`: the inputs that `sides` ("engine", "baseline") name; `gpu`: they run on one; `host`:
    what the device is, for the key and for its name; `kept`: as of `Compile`. `marked`: how often
    it was measured under bad conditions before; `at`: when, so that nothing measured before counts.
    """

    name = "bench"
    version = 5
    tools = ("onnxruntime", "numpy")

    samples: Input
    models: Mapping[str, Input]
    batches: tuple[int, ...]
    seconds: float
    warmup_seconds: float
    sides: Mapping[str, Side]
    gpu: bool
    host: Mapping[str, object]
    marked: str | None = None
    at: str | None = None
    kept: Path | None = beside_the_key(None)
