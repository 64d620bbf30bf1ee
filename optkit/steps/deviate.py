from __future__ import annotations

from dataclasses import dataclass

from optkit.evidence import Evidence
from optkit.execute.step import Input, Result, Step, named
from optkit.measurement import Deviation


@dataclass(frozen=True, kw_only=True)
class Deviated(Result):
    deviation: Deviation


@dataclass(frozen=True, kw_only=True)
class Deviate(Step[Deviated]):
    """The noise of a graph's outputs relative to the FP32 fused graph, `reference`, on the first
    `count` samples. `file`: the file of the graph."""

    name = "deviate"
    version = 6
    tools = ("onnxruntime", "numpy")
    stays = True

    graph: Input
    reference: Input
    samples: Input
    file: str
    evidence: Evidence
    count: int = named("samples")
    batch: int | None
