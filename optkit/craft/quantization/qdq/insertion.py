"""Writes qparams into the graph as QuantizeLinear and DequantizeLinear.

The result is plain ONNX, in place, on the FP32 graph or on its cast to half precision. Scales have
the dtype of the values that they scale; their numbers are the same in both graphs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics.qparams import ActivationQParams, QParams
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.expert_formats import expert_formats
from optkit.craft.quantization.placement.qdq_placement import QdqPlacement, Rules, qdq_placements
from optkit.craft.quantization.placement.recurrent_cells import cell_formats
from optkit.craft.quantization.qdq.coded_experts import CodedExperts, quantize_experts
from optkit.craft.quantization.qdq.coded_recurrences import quantize_recurrences
from optkit.craft.quantization.qdq.embeddings import quantize_embeddings
from optkit.craft.quantization.qdq.qdq_writer import QdqWriter
from optkit.craft.quantization.rounding.expert_rounding import ExpertRounding
from optkit.facts.assignment import Assignment
from optkit.facts.errors import InputRefused
from optkit.ground import graph
from optkit.ground.statistics import Statistics, Tap, merged_taps

_MINIMUM_OPSET = 21  # the first whose Q/DQ take FP16 scales


@dataclass(frozen=True)
class QuantizedNode:
    """One quantized node: the scales of its weight, and the value that it multiplies (None: not
    quantized)."""

    op: str
    precision: str
    weight_scale: tuple[float, float]  # smallest, largest
    block_size: int | None
    activation: str | None  # a key of `QuantLog.activations`


@dataclass(frozen=True)
class QuantizedRange:
    """One Q/DQ pair: the requested range, the method that computed it, and the scale and zero point
    that represent it."""

    low: float
    high: float
    method: str
    scale: float
    zero_point: float
    clipped: float  # share of the calibration elements outside the representable range
    terms: int


@dataclass(frozen=True)
class QuantLog:
    """The results of `apply`. `clamped`: the number of scales that were changed to a normal number
    of their dtype."""

    nodes: dict[str, QuantizedNode]
    activations: dict[str, QuantizedRange]
    clamped: int
    warnings: tuple[str, ...]
    embeddings: dict[str, int] = field(default_factory=dict)  # table -> rows stored in 8 bits
    experts: dict[str, CodedExperts] = field(default_factory=dict)  # by product
    recurrences: dict[str, tuple[float, float]] = field(default_factory=dict)  # ends of scales

    @property
    def pairs(self) -> int:
        """Number of Q/DQ pairs on activations."""
        return sum(value.terms for value in self.activations.values())

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "pairs": self.pairs}


def taps(
    model: ir.Model, assignment: Assignment, rules: Rules, *, moments: bool = False
) -> list[Tap]:
    """The values that calibration must observe for `choose_qparams`, on the FP32 fused graph.
    `moments`: also the second moments of the inputs of products, for GPTQ; of experts each apart.

    If a value is the cast of another float value, the other one is observed, because the cast graph
    may not have the Cast.
    """
    planned, taps_by_node = assignment.quantized(), []
    experts = assignment.planned().keys() & assignment.experts
    for placement in qdq_placements(model, assignment, rules):
        name = str(weighted_nodes.uncast(placement.value).name)
        taps_by_node.append(Tap(name))
        for node, index in placement.readers:
            if index == 0 and node.name in planned:
                taps_by_node.append(_tap(name, node, moments))
    for node in model.graph:
        weight_only = node.name in planned and rules[planned[str(node.name)]].activation is None
        if weight_only and moments and node.inputs[0] is not None:
            taps_by_node.append(
                _tap(str(weighted_nodes.uncast(node.inputs[0]).name), node, moments)
            )
            continue
        stack = graph.stack_of(node) if moments and node.name in experts else None
        if stack is not None:
            axis, chosen = 1 + stack.place, str(stack.chosen.name)
            taps_by_node.append(
                Tap(str(stack.rows.name), axis, moments=True, chosen=chosen, experts=stack.sizes[0])
            )
    return merged_taps(taps_by_node)


def apply(
    model: ir.Model,
    qparams: QParams,
    assignment: Assignment,
    rules: Rules,
    statistics: Statistics | None,
    *,
    scale_dtype: np.dtype | type,
    embeddings: bool = False,
    experts: ExpertRounding | None = None,
    simulated: bool = False,
) -> QuantLog:
    """Quantize the assigned nodes of `model` with the numbers of `qparams`, in place.

    scale_dtype: the dtype to which the qparams were rounded. embeddings: also embedding tables.
    experts: how the matrices of experts are rounded; None: they stay floats.
    simulated: a weight in a format that ONNX Runtime cannot load is written as floats with the
    values of its codes.

    Raises InputRefused for an opset below 21, or a value without qparams.
    """
    if model.opset_imports.get("", 0) < _MINIMUM_OPSET:
        raise InputRefused(f"Q/DQ needs opset {_MINIMUM_OPSET}", hint="run graph.upgrade first")
    planned = assignment.quantized()
    writer = QdqWriter(model, rules, np.dtype(scale_dtype), simulated=simulated)
    activations: dict[str, QuantizedRange] = {}
    products: list[tuple[ir.Node, str | None]] = []  # with the value that they multiply
    for placement in qdq_placements(model, assignment, rules):
        numbers = _decided(placement, qparams)
        if numbers is not None:
            writer.pair(placement, numbers)
            name = str(placement.value.name)
            activations[name] = _logged(numbers)
            products += [(node, name) for node, index in placement.readers if index == 0]
    paired = {node for node, _ in products}
    products += [(node, None) for node in model.graph if node not in paired]
    nodes: dict[str, QuantizedNode] = {}
    for node, activation in products:  # when all pairs are written, because results get new names
        key = str(node.name)
        if key in qparams.weights and key in planned:
            weight, op = qparams.weights[key], node.op_type
            writer.weight(node, weight, rules[planned[key]])
            block = weight.format.block_size
            nodes[key] = QuantizedNode(op, planned[key].name, weight.span, block, activation)
    writer.remove_unread()
    tables = quantize_embeddings(model) if embeddings else {}
    formats = expert_formats(assignment, rules)
    coded = {} if experts is None else quantize_experts(model, formats, experts)
    recurrences = quantize_recurrences(model, cell_formats(assignment, rules))
    warnings = (*(statistics.warnings() if statistics is not None else ()), *qparams.warnings)
    return QuantLog(nodes, activations, qparams.clamped, warnings, tables, coded, recurrences)


def _tap(name: str, node: ir.Node, moments: bool) -> Tap:
    if node.op_type == "Conv":
        return Tap(name, 1, rows=True, moments=moments, windows=(weighted_nodes.window(node),))
    return Tap(name, channel_axis=-1, rows=True, moments=moments)


def _logged(numbers: ActivationQParams) -> QuantizedRange:
    scale = numbers.scale
    return QuantizedRange(
        numbers.low,
        numbers.high,
        numbers.method,
        float(scale.scale),
        float(scale.zero_point),
        numbers.clipped,
        1 if numbers.rest is None else 2,
    )


def _decided(placement: QdqPlacement, qparams: QParams) -> ActivationQParams | None:
    """The qparams of the value. If the cast renamed the value, they have the name of the value
    before a Cast or of its cast (a model output). None: it has no range."""
    known = qparams.activations
    value: ir.Value | None = placement.value
    while value is not None:
        if (numbers := known.get((str(value.name), placement.format))) is not None:
            return numbers
        producer = value.producer()
        cast = producer is not None and producer.op_type == "Cast"
        value = producer.inputs[0] if cast and producer is not None else None
    casts = (reader for reader in placement.value.consumers() if reader.op_type == "Cast")
    results = (known.get((str(cast.outputs[0].name), placement.format)) for cast in casts)
    return next((numbers for numbers in results if numbers is not None), None)
