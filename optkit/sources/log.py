"""The facts about an export besides the graph: its source, its inputs, and how it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from optkit.tensors import AxisRange, InputSpec, TensorInfo


@dataclass(frozen=True)
class Check:
    """One comparison with the source: axis sizes, and the largest difference of each output (for
    integers and bools: the share that differs)."""

    sizes: dict[str, int]
    errors: dict[str, float]


@dataclass(frozen=True)
class ExportLog:
    """The log of an export.

    `opset`: read from the graph. `checks`: empty for an `.onnx`, which is its own source;
    `converted_from` is then its former opset, None if it was kept. A Hugging Face model also has
    its `task`, and its inputs and axes, which no recipe has to declare. `untrained`: which
    parameters of a Python model are random, because neither the recipe nor the factory gave them
    values. `positions`: the number of rows in its table of positions, None without a table.
    `image_processor`: how the Python model says that its pictures are prepared.
    """

    source: Literal["python", "pt2", "onnx", "hf"]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    opset: int
    nodes: int
    checks: tuple[Check, ...] = ()
    converted_from: int | None = None
    task: str | None = None
    specs: tuple[InputSpec, ...] = ()
    axes: Mapping[str, AxisRange] = field(default_factory=dict)
    positions: int | None = None
    warnings: tuple[str, ...] = ()
    untrained: str | None = None
    image_processor: Mapping[str, object] | None = None
