from __future__ import annotations

from dataclasses import dataclass

from optkit.evidence import Evidence
from optkit.execute.step import Input, Result, Shards, Step
from optkit.measurement import Fidelity


@dataclass(frozen=True, kw_only=True)
class ComparedOutputs(Result):
    """`fidelity`: None for a part of the samples."""

    fidelity: Fidelity | None = None


@dataclass(frozen=True, kw_only=True)
class CompareOutputs(Shards, Step[ComparedOutputs]):
    """Fidelity of a graph's outputs to those of the FP32 fused graph, or of the graph as it was
    given, `reference`. `file`: the file of the graph that runs; `to`: the name of the reference."""

    name = "compare"
    version = 11
    tools = ("onnxruntime", "numpy")
    stays = True

    graph: Input
    reference: Input
    samples: Input
    file: str
    batch: int | None
    evidence: Evidence
    to: str = "fp32"
