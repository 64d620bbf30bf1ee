"""What a source hands on beside the graph: where it came from and how it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from optkit.recipe import InputSpec
from optkit.tensors import AxisRange, TensorInfo


@dataclass(frozen=True)
class Check:
    """One comparison with the source: axis sizes, and the largest difference of each output (of
    integers and bools: the share that differs)."""

    sizes: dict[str, int]
    errors: dict[str, float]


@dataclass(frozen=True)
class ExportLog:
    """`opset` is read back from the graph. `checks` is empty for an `.onnx`, which is its own
    source; there `converted_from` tells the opset it had, None when it was kept. A Hugging Face
    model also has its `task`, and its own inputs and axes, which no recipe had to declare;
    `untrained` says which parameters of a Python model are random, where neither the recipe nor the
    factory gave them values. `positions` are the tokens that its table of positions has rows for,
    None without a table."""

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

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "specs": [spec.to_json() for spec in self.specs]}
