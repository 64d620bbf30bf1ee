from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.facts.timed_layers import LayerTimes
from optkit.ground.execute.step import Step, StepInput, StepResult, beside_the_key, spread
from optkit.road.steps.sessions import Engines


@dataclass(frozen=True, kw_only=True)
class AttributedTimes(StepResult):
    times: LayerTimes


@dataclass(frozen=True)
class Kernels:
    """Profiles kernels of ONNX Runtime here, at these shapes, for about so many seconds. `host`:
    the machine, for the key."""

    shapes: Mapping[str, tuple[int, ...]]
    seconds: float
    host: Mapping[str, object]
    threads: int | None


@dataclass(frozen=True)
class EngineProfile(Engines):
    """Engines on their device, which time their layers; the other fields are as in `Kernels`."""

    shapes: Mapping[str, tuple[int, ...]]
    seconds: float
    host: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Attribute(Step[AttributedTimes]):
    """Measured milliseconds of every layer of candidate and baseline, and the nodes of the
    candidate; `PredictLayers` predicts them. `axes`: sizes of the named axes; `kept`: as in
    `Compile`. Kernels of a CPU run on `samples`, because the time of some (TopK, NonZero, a search
    for boxes) depends on the numbers."""

    name = "attribute"
    version = 5
    tools = ("onnxruntime", "onnx", "onnx-ir")

    candidate: StepInput
    baseline: StepInput
    candidate_engine: StepInput | None = None
    baseline_engine: StepInput | None = None
    samples: StepInput | None = None
    axes: Mapping[str, int]
    way: Kernels | EngineProfile = spread()
    kept: Path | None = beside_the_key(None)
