"""Which nodes become INT8, by the rules of the backend that will run them. Changes nothing."""

from __future__ import annotations

import onnx_ir as ir

from optkit import graph
from optkit.assignment import Assignment
from optkit.precision import Precision
from optkit.quantization import operands
from optkit.quantization.sites import tail
from optkit.runtime import PlacementRules

_FOLDABLE = ("Transpose", "Identity", "Cast")


def assign(
    model: ir.Model, precision: Precision, rules: PlacementRules, carrier: str
) -> Assignment:
    """Consider every Conv, ConvTranspose, MatMul and Gemm that multiplies by a constant.

    A node gets `precision.name`, or `carrier` ("fp16", "fp32") with the reason. Nodes inside
    If and Loop bodies stay in float and are not considered.
    """
    last = _last_layers(model) if rules.float_output else frozenset()
    nodes: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for node in model.graph:
        weight = graph.constant_weight(node)
        if weight is None:
            continue
        name = str(node.name)
        reason = _why_float(node, weight, precision, rules, last)
        nodes[name] = carrier if reason else precision.name
        if reason:
            reasons[name] = reason
    return Assignment(nodes, reasons)


def _why_float(
    node: ir.Node,
    weight: tuple[int, ir.Value],
    precision: Precision,
    rules: PlacementRules,
    last: frozenset[ir.Node],
) -> str | None:
    """The first reason against quantizing the node, or None."""
    index, constant = weight
    op = node.op_type
    if not precision.quantized:
        return f"{precision.name} quantizes nothing"
    if op in rules.excluded:
        return rules.excluded[op]
    if op not in rules.ops:
        return f"{op} has no integer kernel in this backend"
    if index == 0:
        return "the constant is the left operand: its scale would lie along the summed axis"
    if any(value is None or value.dtype is None for value in (node.inputs[0], node.outputs[0])):
        return "the type of what it reads or makes is not known: a foreign operator is before it"
    if not _is_plain(node.inputs[index], constant):
        return "its weight is quantized already or not a plain float tensor"
    if op == "Gemm" and not _is_plain_gemm(node):
        return "Gemm with transA, alpha or beta has no integer kernel"
    if op == "MatMul" and constant.shape is not None and len(constant.shape) != 2:
        return "the weight is not a matrix: one scale per column would mix different matrices"
    if op == "Conv" and _is_thin(node, constant, rules):
        return f"fewer than {rules.min_conv_channels} input channels: float is faster"
    if op in rules.integer_bias and operands.has_bias(node) and operands.bias(node) is None:
        return "its bias is not one constant per output channel, as an integer kernel needs"
    if op in rules.quantize_outputs and (node in last or tail(node).is_graph_output()):
        return "its result is a model output, and an integer kernel would leave 8 bits of it"
    return None


def _is_plain(value: ir.Value | None, constant: ir.Value) -> bool:
    """Nothing but layout and float casts lie between the stored float tensor and the node."""
    while value is not None and value is not constant:
        producer = value.producer()
        if producer is None or producer.op_type not in _FOLDABLE:
            return False
        value = producer.inputs[0]
    return constant.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def _is_plain_gemm(node: ir.Node) -> bool:
    attributes = node.attributes
    return (
        attributes.get_int("transA", 0) == 0
        and attributes.get_float("alpha", 1.0) == 1.0
        and (not operands.has_bias(node) or attributes.get_float("beta", 1.0) == 1.0)
    )


def _is_thin(node: ir.Node, weight: ir.Value, rules: PlacementRules) -> bool:
    """Too few input channels for an integer kernel to pay; but pooling right behind a float result
    would run on integers in the layout of floats, which costs more than the convolution saves."""
    assert weight.shape is not None
    channels = int(weight.shape.numpy()[1]) * node.attributes.get_int("group", 1)
    pooled = any(reader.op_type == "MaxPool" for reader in tail(node).consumers())
    return channels < rules.min_conv_channels and not pooled


def _last_layers(model: ir.Model) -> frozenset[ir.Node]:
    """The weighted nodes whose result reaches a model output through nothing that mixes it with
    another value (logits, maps; not the branches of a residual sum)."""
    found = set()
    for output in model.graph.outputs:
        value: ir.Value | None = output
        while value is not None:
            node = value.producer()
            if node is None:
                break
            if graph.constant_weight(node) is not None:
                found.add(node)
                break
            read = operands.computed(node)
            value = read[0] if len(read) == 1 else None
    return frozenset(found)
