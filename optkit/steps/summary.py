from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.execute.step import Input, Result, Step
from optkit.node_cost import GraphSummary


@dataclass(frozen=True, kw_only=True)
class Summarized(Result):
    summary: GraphSummary


@dataclass(frozen=True, kw_only=True)
class Summarize(Step[Summarized]):
    """The facts about a graph that `optkit inspect` prints, with these sizes for the named axes."""

    name = "summary"
    version = 1
    tools = ("onnx", "onnx-ir")
    stays = True

    model: Input
    axes: Mapping[str, int]
