from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optkit.assignment import Assignment, Scheme
from optkit.execute.step import Input, Step, always, spread
from optkit.recipe import Quantization
from optkit.steps.graph import Rewritten

Method = Literal["auto", "minmax", "percentile", "entropy", "mse"]
"""How a range follows from statistics."""


@dataclass(frozen=True)
class QuantizationSettings:
    """What the recipe says of a quantization. `order`: the patterns of `settings.nodes`, of which
    the last that matches counts, while the keys of a JSON object have no order in a digest."""

    method: Method
    percentile: float
    settings: Quantization
    order: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Quantized(Rewritten):
    """With the precision of each node, and the reasons of those left in the carrier's."""

    assignment: Assignment = always(Assignment())


@dataclass(frozen=True, kw_only=True)
class Quantize(Step[Quantized]):
    """Assignment and its numbers, then Q/DQ on the carrier graph; where carriers are not FP32, also
    the FP32 simulation of it."""

    name = "quantize"
    version = 4
    tools = ("numpy", "onnx", "onnx-ir", "ml-dtypes")
    stays = True

    fused: Input
    carrier: Input
    statistics: Input | None = None
    scheme: Scheme = spread()
    settings: QuantizationSettings = spread()
