from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.ground.execute.step import Step, StepInput, StepResult

OUTLINE = "outline.json"
SCALES = "scales.safetensors"


@dataclass(frozen=True)
class NodeOutline:
    """A node; a node without a name is named by its first output. `attributes`: as text; tensors
    and long lists as digests. `multiplies`: the dtypes of the operands of a product."""

    name: str
    op: str
    inputs: tuple[str | None, ...]
    attributes: Mapping[str, str]
    multiplies: str | None


@dataclass(frozen=True)
class WeightOutline:
    """A constant; `digest` covers dtype, shape and numbers."""

    name: str
    dtype: str | None
    shape: tuple[int, ...]
    bytes: int
    digest: str


@dataclass(frozen=True)
class GraphOutline:
    """A graph without the numbers of its weights. `scales`: the names of the tensors that have
    scales, in the order of the arrays in SCALES. Scales are not among the weights here."""

    opset: Mapping[str, int]
    inputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]  # name, dtype, shape
    outputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    nodes: tuple[NodeOutline, ...]
    weights: tuple[WeightOutline, ...]
    scales: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outline(Step[StepResult]):
    """The parts of a graph by which two graphs are compared: nodes, values and scales."""

    name = "outline"
    version = 1
    tools = ("onnx", "onnx-ir")
    stays = True

    model: StepInput
