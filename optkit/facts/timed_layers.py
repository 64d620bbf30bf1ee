"""The fused layers of two engines with their times, and the ONNX nodes that are in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.engines import FusedLayer


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
    """The layers of candidate and baseline, and the nodes of the candidate by name. `copies_ms`:
    what a call takes beside its layers to copy inputs and outputs over PCIe, where predicted; None
    if the times were measured, or if there is no link."""

    candidate: tuple[TimedLayer, ...]
    baseline: tuple[TimedLayer, ...]
    nodes: Mapping[str, NodeWork]
    copies_ms: float | None = None
