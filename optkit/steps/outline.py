from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.execute.step import Input, Result, Step

OUTLINE = "outline.json"
SCALES = "scales.safetensors"


@dataclass(frozen=True)
class NodeOutline:
    """A node; one without a name goes by its first output. `attributes`: as text, those that are
    tensors or long as digests. `multiplies`: the dtypes of a product's operands."""

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
    """A graph without its weights' numbers. `scales`: names of the tensors that have any, in the
    order of the arrays in SCALES, which are no weights here."""

    opset: Mapping[str, int]
    inputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]  # name, dtype, shape
    outputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    nodes: tuple[NodeOutline, ...]
    weights: tuple[WeightOutline, ...]
    scales: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outline(Step[Result]):
    """What two graphs are compared by: nodes, values and scales."""

    name = "outline"
    version = 1
    tools = ("onnx", "onnx-ir")
    stays = True

    model: Input
