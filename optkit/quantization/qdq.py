"""Write a decided quantization into the graph as QuantizeLinear and DequantizeLinear.

Plain ONNX, in place, on the FP32 graph or on its FP16 cast: scales take the dtype of what they
scale, their numbers are the same in both.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from optkit.assignment import Assignment
from optkit.errors import InputRefused
from optkit.quantization import scales
from optkit.quantization.scales import Scale
from optkit.quantization.sites import sites
from optkit.quantization.writer import Writer
from optkit.runtime import PlacementRules
from optkit.statistics import Method, Statistics

_MINIMUM_OPSET = 21  # the first whose Q/DQ take FP16 scales


@dataclass(frozen=True)
class QuantizedNode:
    """One node that became integer: its weight's scales and the value it multiplies."""

    op: str
    precision: str
    weight_scale: tuple[float, float]  # smallest, largest over the channels
    activation: str  # a key of `QuantLog.activations`


@dataclass(frozen=True)
class QuantizedValue:
    """One Q/DQ pair: the range that was asked for and what represents it."""

    low: float
    high: float
    scale: float
    zero_point: int
    clipped: float  # share of the calibration elements outside the representable range


@dataclass(frozen=True)
class QuantLog:
    """What `apply` did. `clamped`: scales moved to what their dtype holds as a normal number."""

    nodes: dict[str, QuantizedNode]
    activations: dict[str, QuantizedValue]
    clamped: int
    warnings: tuple[str, ...]

    @property
    def pairs(self) -> int:
        """Number of Q/DQ pairs on activations."""
        return len(self.activations)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "pairs": self.pairs}


def taps(model: ir.Model, assignment: Assignment, rules: PlacementRules) -> list[str]:
    """Names of the values whose ranges `apply` will ask for; give it the FP32 fused graph.

    Of a value cast from another float, that one: the FP16 cast may leave out the Cast between.
    """
    wanted = (_uncast(site.value) for site in sites(model, assignment, rules))
    return list(dict.fromkeys(str(value.name) for value in wanted))


def apply(
    model: ir.Model,
    assignment: Assignment,
    statistics: Statistics,
    rules: PlacementRules,
    *,
    method: Method,
    percentile: float,
    scale_dtype: np.dtype | type,
) -> QuantLog:
    """Quantize the assigned nodes of `model`, in place.

    `scale_dtype`: float16 rounds scales and weights to half first, as a TensorRT engine will hold
    them, whatever the model's own dtype; so a simulation in FP32 has the engine's codes.
    Raises InputRefused for an opset below 21 or a value without statistics.
    """
    if model.opset_imports.get("", 0) < _MINIMUM_OPSET:
        raise InputRefused(f"Q/DQ needs opset {_MINIMUM_OPSET}", hint="run graph.upgrade first")
    planned = assignment.quantized()
    writer = Writer(model, rules, np.dtype(scale_dtype))
    activations: dict[str, QuantizedValue] = {}
    products: list[tuple[str, Scale, list[ir.Node]]] = []
    for site in sites(model, assignment, rules):
        name, source = str(site.value.name), _observed(site.value, statistics)
        low, high = statistics.range(source, method, percentile)
        scale = writer.pair(site, low, high)
        kept = scales.representable(scale, rules.activation)
        clipped = statistics.value(source).fraction_outside(*kept)
        activations[name] = QuantizedValue(
            low, high, float(scale.scale), int(scale.zero_point), clipped
        )
        multiplying = [n for n, index in site.readers if index == 0 and n.name in planned]
        products.append((name, scale, multiplying))
    nodes: dict[str, QuantizedNode] = {}
    for name, activation, multiplying in products:  # when every pair stands: results get renamed
        operators = [node.op_type for node in multiplying]
        weights = writer.weights(multiplying, activation)
        for node, op, weight in zip(multiplying, operators, weights, strict=True):
            span = (float(weight.scale.min()), float(weight.scale.max()))
            nodes[str(node.name)] = QuantizedNode(op, planned[str(node.name)], span, name)
    writer.remove_unread()
    return QuantLog(nodes, activations, writer.clamped, tuple(statistics.warnings()))


def _uncast(value: ir.Value) -> ir.Value:
    producer = value.producer()
    while producer is not None and producer.op_type == "Cast":
        source = producer.inputs[0]
        if source is None or source.dtype is None or not source.dtype.is_floating_point():
            break
        value, producer = source, source.producer()
    return value


def _observed(value: ir.Value, statistics: Statistics) -> str:
    """The name under which the value was calibrated: its own, or where the FP16 cast gave it a new
    one, that of what was cast to it or of what it is cast to (a model output)."""
    walk: ir.Value | None = value
    while walk is not None and walk.name not in statistics.values:
        producer = walk.producer()
        cast = producer is not None and producer.op_type == "Cast"
        walk = producer.inputs[0] if cast and producer is not None else None
    if walk is not None:
        return str(walk.name)
    casts = [reader for reader in value.consumers() if reader.op_type == "Cast"]
    results = [str(cast.outputs[0].name) for cast in casts]
    return next((name for name in results if name in statistics.values), str(value.name))
