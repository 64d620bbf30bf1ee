"""The facts about an export besides the graph: its source, its inputs, and how it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from optkit.facts.documents.export_comparison import ExportCheck, ExportLeftOut
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo


@dataclass(frozen=True)
class OnnxOrigin:
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
    checks: tuple[ExportCheck, ...] = ()
    left_out: tuple[ExportLeftOut, ...] = ()
    converted_from: int | None = None
    task: str | None = None
    specs: tuple[InputSpec, ...] = ()
    axes: Mapping[str, AxisRange] = field(default_factory=dict)
    positions: int | None = None
    warnings: tuple[str, ...] = ()
    untrained: str | None = None
    image_processor: Mapping[str, object] | None = None
    origin: OnnxOrigin | None = None
