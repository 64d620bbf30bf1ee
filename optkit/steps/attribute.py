from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.documents.report import LayerFacts
from optkit.engines import FusedLayer
from optkit.execute.step import Input, Result, Step, beside_the_key, spread
from optkit.steps.sessions import Engines


@dataclass(frozen=True)
class Node:
    """An ONNX node: its cost, and the nodes that make what it reads. `macs` None: unknown;
    `summed`: the axis that a product of matrices sums over, None of another node."""

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
    """A fused layer and the milliseconds that it takes. `compute_ms`, `memory_ms`: what each alone
    is predicted to take; None where the time was measured."""

    layer: FusedLayer
    ms: float
    compute_ms: float | None = None
    memory_ms: float | None = None


@dataclass(frozen=True)
class LayerTimes:
    """The layers of candidate and baseline, and the nodes of the candidate by name."""

    candidate: tuple[TimedLayer, ...]
    baseline: tuple[TimedLayer, ...]
    nodes: Mapping[str, Node]


@dataclass(frozen=True, kw_only=True)
class Attributed(Result):
    times: LayerTimes


@dataclass(frozen=True)
class Kernels:
    """ONNX Runtime's, profiled here on zeros of these shapes for about so many seconds. `host`: the
    machine, for the key."""

    shapes: Mapping[str, tuple[int, ...]]
    seconds: float
    host: Mapping[str, object]
    threads: int | None


@dataclass(frozen=True)
class EngineProfile(Engines):
    """Engines on their device, which time their own layers; else as `Kernels`."""

    shapes: Mapping[str, tuple[int, ...]]
    seconds: float
    host: Mapping[str, object]


@dataclass(frozen=True)
class PredictedLayers:
    """Side → the layers that its compiler lists, each predicted for a device, which has this name
    and fingerprint. `fit`: the digest of the fitted numbers, for the key."""

    layers: Mapping[str, tuple[LayerFacts, ...]]
    name: str
    target: Mapping[str, object]
    fit: str


@dataclass(frozen=True, kw_only=True)
class Attribute(Step[Attributed]):
    """Milliseconds of every layer of candidate and baseline, and what the candidate's nodes are.
    `axes`: sizes of the named axes; `kept`: as of `Compile`."""

    name = "attribute"
    version = 2
    tools = ("onnxruntime", "onnx", "onnx-ir")

    candidate: Input
    baseline: Input
    candidate_engine: Input | None = None
    baseline_engine: Input | None = None
    axes: Mapping[str, int]
    way: Kernels | EngineProfile | PredictedLayers = spread()
    kept: Path | None = beside_the_key(None)
