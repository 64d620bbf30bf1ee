"""Write a decided quantization into the graph as QuantizeLinear and DequantizeLinear.

Plain ONNX, in place, on the FP32 graph or on its cast: scales take the dtype of what they scale,
their numbers are the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from optkit.assignment import Assignment
from optkit.errors import InputRefused
from optkit.quantization.numerics.qparams import ActivationNumbers, Decisions, WeightNumbers
from optkit.quantization.placement import weighted_nodes as operands
from optkit.quantization.placement.qdq_placement import Rules, Site, sites
from optkit.quantization.qdq.embeddings import quantize_embeddings
from optkit.quantization.qdq.writer import Writer
from optkit.statistics import Statistics, Tap, merged_taps

_MINIMUM_OPSET = 21  # the first whose Q/DQ take FP16 scales


@dataclass(frozen=True)
class QuantizedNode:
    """One quantized node: its weight's scales, and the value it multiplies (None: as it is)."""

    op: str
    precision: str
    weight_scale: tuple[float, float]  # smallest, largest
    block_size: int | None
    activation: str | None  # a key of `QuantLog.activations`


@dataclass(frozen=True)
class QuantizedValue:
    """One Q/DQ pair: the range that was asked for, by which method, and what represents it."""

    low: float
    high: float
    method: str
    scale: float
    zero_point: float
    clipped: float  # share of the calibration elements outside the representable range
    terms: int


@dataclass(frozen=True)
class QuantLog:
    """What `apply` did. `clamped`: scales moved to what their dtype holds as a normal number."""

    nodes: dict[str, QuantizedNode]
    activations: dict[str, QuantizedValue]
    clamped: int
    warnings: tuple[str, ...]
    embeddings: dict[str, int] = field(default_factory=dict)  # table -> rows stored in 8 bits

    @property
    def pairs(self) -> int:
        """Number of Q/DQ pairs on activations."""
        return sum(value.terms for value in self.activations.values())

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "pairs": self.pairs}


def taps(
    model: ir.Model, assignment: Assignment, rules: Rules, *, moments: bool = False
) -> list[Tap]:
    """What calibration has to learn for `decide`; give it the FP32 fused graph. `moments`: also
    the second moments of what nodes multiply, for GPTQ and AWQ.

    Of a value cast from another float, that one: the cast of the graph may leave out the Cast.
    """
    planned = assignment.quantized()
    found = []
    for site in sites(model, assignment, rules):
        name = str(operands.uncast(site.value).name)
        found.append(Tap(name))
        for node, index in site.readers:
            if index == 0 and node.name in planned:
                found.append(_tap(name, node, moments))
    for node in model.graph:
        weight_only = node.name in planned and rules[planned[str(node.name)]].activation is None
        if weight_only and moments and node.inputs[0] is not None:
            found.append(_tap(str(operands.uncast(node.inputs[0]).name), node, moments))
    return merged_taps(found)


def apply(
    model: ir.Model,
    decisions: Decisions,
    assignment: Assignment,
    rules: Rules,
    statistics: Statistics | None,
    *,
    scale_dtype: np.dtype | type,
    embeddings: bool = False,
    simulated: bool = False,
) -> QuantLog:
    """Quantize the assigned nodes of `model` with the numbers of `decisions`, in place.

    `scale_dtype`: what the decisions were rounded to. `embeddings`: tables too. `simulated`: a
    weight in a format that ONNX Runtime cannot load is written as the floats its codes stand for.
    Raises InputRefused for an opset below 21 or a value nothing was decided for.
    """
    if model.opset_imports.get("", 0) < _MINIMUM_OPSET:
        raise InputRefused(f"Q/DQ needs opset {_MINIMUM_OPSET}", hint="run graph.upgrade first")
    planned = assignment.quantized()
    writer = Writer(model, rules, np.dtype(scale_dtype), simulated=simulated)
    activations: dict[str, QuantizedValue] = {}
    products: list[tuple[str, list[ir.Node]]] = []
    found_sites = sites(model, assignment, rules)
    for site in found_sites:
        numbers = _decided(site, decisions)
        if numbers is None:
            continue
        writer.pair(site, numbers)
        name = str(site.value.name)
        activations[name] = _told(numbers)
        products.append((name, [n for n, index in site.readers if index == 0]))
    nodes: dict[str, QuantizedNode] = {}
    alone = (node for node in list(model.graph) if node.name in planned)
    reading = {id(node) for _, readers in products for node in readers}
    products += [("", [node]) for node in alone if id(node) not in reading]
    for name, readers in products:  # when every pair stands: results get renamed
        for node in readers:
            if node.name in decisions.weights and node.name in planned:
                numbers_of = decisions.weights[str(node.name)]
                operator, precision = node.op_type, planned[str(node.name)]
                writer.weight(node, numbers_of, rules[precision])
                nodes[str(node.name)] = _node(operator, precision, numbers_of, name or None)
    writer.remove_unread()
    tables = quantize_embeddings(model) if embeddings else {}
    warnings = (*(statistics.warnings() if statistics is not None else ()), *decisions.warnings)
    return QuantLog(nodes, activations, decisions.clamped, warnings, tables)


def _tap(name: str, node: ir.Node, moments: bool) -> Tap:
    if node.op_type == "Conv":
        return Tap(name, 1, rows=True, moments=moments, windows=(operands.window(node),))
    return Tap(name, channel_axis=-1, rows=True, moments=moments)


def _told(numbers: ActivationNumbers) -> QuantizedValue:
    scale = numbers.scale
    return QuantizedValue(
        numbers.low, numbers.high, numbers.method, float(scale.scale), float(scale.zero_point),
        numbers.clipped, 1 if numbers.rest is None else 2,
    )  # fmt: skip


def _node(
    operator: str, precision: str, numbers: WeightNumbers, activation: str | None
) -> QuantizedNode:
    return QuantizedNode(operator, precision, numbers.span, numbers.format.block_size, activation)


def _decided(site: Site, decisions: Decisions) -> ActivationNumbers | None:
    """The numbers of the value: under its own name, or where the cast gave it a new one, under that
    of what was cast to it or of what it is cast to (a model output). None: it has no range."""
    known: Mapping[tuple[str, Any], ActivationNumbers] = decisions.activations
    value: ir.Value | None = site.value
    while value is not None:
        if (found := known.get((str(value.name), site.format))) is not None:
            return found
        producer = value.producer()
        cast = producer is not None and producer.op_type == "Cast"
        value = producer.inputs[0] if cast and producer is not None else None
    casts = (reader for reader in site.value.consumers() if reader.op_type == "Cast")
    results = (known.get((str(cast.outputs[0].name), site.format)) for cast in casts)
    return next((found for found in results if found is not None), None)
