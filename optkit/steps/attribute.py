from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.engines import FusedLayer
from optkit.execute.step import Step, StepInput, StepResult, beside_the_key, spread
from optkit.steps.sessions import Engines


@dataclass(frozen=True)
class NodeWork:
    """An ONNX node: its cost, and the nodes that write the values it reads. `macs`: None if
    unknown; `summed`: the size of the axis over which a matrix product sums, None for other
    nodes."""

    op: str
    macs: int | None
    weight_bytes: int
    reads: tuple[str, ...]
    summed: int | None = None

    @property
    def is_product(self) -> bool:
        return self.macs != 0 or self.op in ("FusedConv", "FusedGemm")


@dataclass(frozen=True)
class TimedLayer:
    """A fused layer and its time in milliseconds. `compute_ms`, `memory_ms`, `launch_ms`: the
    predicted times of its parts; None if the time was measured."""

    layer: FusedLayer
    ms: float
    compute_ms: float | None = None
    memory_ms: float | None = None
    launch_ms: float | None = None


@dataclass(frozen=True)
class LayerTimes:
    """The layers of candidate and baseline, and the nodes of the candidate by name."""

    candidate: tuple[TimedLayer, ...]
    baseline: tuple[TimedLayer, ...]
    nodes: Mapping[str, NodeWork]


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
    version = 4
    tools = ("onnxruntime", "onnx", "onnx-ir")

    candidate: StepInput
    baseline: StepInput
    candidate_engine: StepInput | None = None
    baseline_engine: StepInput | None = None
    samples: StepInput | None = None
    axes: Mapping[str, int]
    way: Kernels | EngineProfile = spread()
    kept: Path | None = beside_the_key(None)
