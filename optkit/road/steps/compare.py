from __future__ import annotations

from dataclasses import dataclass

from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Fidelity
from optkit.ground.execute.step import Shards, Step, StepInput, StepResult


@dataclass(frozen=True, kw_only=True)
class ComparedOutputs(StepResult):
    """`fidelity`: None for a part of the samples."""

    fidelity: Fidelity | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The fields of a step that compares the outputs of a graph with those of `reference`. `file`:
    the file of the graph that runs."""

    graph: StepInput
    reference: StepInput
    samples: StepInput
    file: str
    batch: int | None
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class CompareOutputs(Comparison, Shards, Step[ComparedOutputs]):
    """Fidelity of a graph's outputs to those of the FP32 fused graph, or of the graph as it was
    given; `to`: the name of the reference."""

    name = "compare"
    version = 11
    tools = ("onnxruntime", "numpy")
    stays = True

    to: str = "fp32"
