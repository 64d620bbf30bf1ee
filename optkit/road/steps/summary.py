from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.node_cost import GraphSummary
from optkit.ground.execute.step import Step, StepInput, StepResult


@dataclass(frozen=True, kw_only=True)
class SummaryResult(StepResult):
    summary: GraphSummary


@dataclass(frozen=True, kw_only=True)
class Summarize(Step[SummaryResult]):
    """The facts about a graph that `optkit inspect` prints, with these sizes for the named axes."""

    name = "summary"
    version = 1
    tools = ("onnx", "onnx-ir")
    stays = True

    model: StepInput
    axes: Mapping[str, int]
