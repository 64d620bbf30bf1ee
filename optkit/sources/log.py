"""The facts about an export besides the graph: its source, its inputs, and how it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from optkit.tensors import AxisRange, InputSpec, TensorInfo


@dataclass(frozen=True)
class Check:
    """One comparison with the source: axis sizes, and the largest difference of each output (for
    integers and bools: the share that differs; None where one side is not finite). `values`: what
    both ran on; `masks`: how masks were filled, if in a way of their own; `notes`: differences that
    are no errors of the export."""

    sizes: dict[str, int]
    errors: dict[str, float | None]
    values: Literal["samples", "random"] = "random"
    masks: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """Axis sizes at which graph and source were not compared, and why."""

    sizes: dict[str, int]
    reason: str


@dataclass(frozen=True)
class Origin:
    """What the user's ONNX file says about its model besides its graph. Programs read class names,
    strides and versions there, so each file that optkit makes of it says the same. The `graph_…`
    fields are those of GraphProto, the others of ModelProto."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    doc_string: str = ""
    domain: str = ""
    model_version: int = 0
    graph_name: str = ""
    graph_doc_string: str = ""
    graph_metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportLog:
    """The log of an export.

    `opset`: read from the graph. `checks`: empty for an `.onnx`, which is its own source.
    `left_out`: the comparisons that were not made. `converted_from`: the former opset of an
    `.onnx`, None if it was kept. A Hugging Face model also has its `task`, and its inputs and axes,
    which no recipe has to declare. `untrained`: which parameters of a Python model are random,
    because neither the recipe nor the factory gave them values. `positions`: the number of rows in
    its table of positions, None without a table. `image_processor`: how the Python model says that
    its pictures are prepared. `origin`: of an `.onnx`.
    """

    source: Literal["python", "pt2", "onnx", "hf"]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    opset: int
    nodes: int
    checks: tuple[Check, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    converted_from: int | None = None
    task: str | None = None
    specs: tuple[InputSpec, ...] = ()
    axes: Mapping[str, AxisRange] = field(default_factory=dict)
    positions: int | None = None
    warnings: tuple[str, ...] = ()
    untrained: str | None = None
    image_processor: Mapping[str, object] | None = None
    origin: Origin | None = None
