"""What a quantized graph asks for: the dtypes in which each product is to run."""

from __future__ import annotations

import onnx_ir as ir

from optkit.craft.foreign import operators
from optkit.craft.foreign.qdq_parameters import (
    DEQUANTIZE,
    QUANTIZE,
    QuantizationParameters,
    codes_of,
    is_pair,
    producer,
)
from optkit.craft.foreign.repairs import normal_form
from optkit.facts.documents.given_graph import AskedProduct, OperandFormat
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.ground import graph

INTEGER_PRODUCTS = ("QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger")
_LAYOUT = ("Transpose", "Reshape", "Cast", "Identity", "Squeeze", "Unsqueeze", "Flatten")
_PRECISIONS = {
    ("int8", "int8"): PRECISIONS["int8"],
    ("int8", None): PRECISIONS["int8-weight-only"],
    ("int4", None): PRECISIONS["int4"],
    ("float8e4m3fn", "float8e4m3fn"): PRECISIONS["fp8"],
}


def is_quantized(model: ir.Model) -> bool:
    """Whether the graph holds Q/DQ nodes or integer products."""
    integer = (*INTEGER_PRODUCTS, "DynamicQuantizeLinear", "QLinearAdd")
    return any(is_pair(node) or node.op_type in integer for node in model.graph.all_nodes())


def requested_products(model: ir.Model) -> list[AskedProduct]:
    """What the graph asks for, in whichever form it is written. The graph does not change."""
    copy = model.clone()
    operators.to_pairs(copy)
    dynamic = set(operators.dynamic_to_weight_only(copy))
    normal_form(copy)
    each_run = OperandFormat("uint8", "dynamic", symmetric=False)
    return [
        _product(one.node, one.op, one.weight, each_run) if one.node in dynamic else one
        for one in products(copy)
    ]


def products(model: ir.Model) -> list[AskedProduct]:
    """The products with a constant weight, in Q/DQ form (`repairs.operators` writes integer
    products in this form)."""
    found = []
    for node in model.graph:
        place = graph.constant_weight(node)
        if place is None:
            continue
        index = place[0]
        weight, activation = _format(node.inputs[index]), _format(node.inputs[1 - index])
        found.append(_product(str(node.name), node.op_type, weight, activation))
    return found


def _product(
    node: str, op: str, weight: OperandFormat | None, activation: OperandFormat | None
) -> AskedProduct:
    """The product with the precision of optkit that this is, with signed codes."""
    precision = None
    if weight is not None:
        read = None if activation is None else _signed(activation.dtype)
        precision = _PRECISIONS.get((_signed(weight.dtype), read))
    name = None if precision is None else precision.name
    return AskedProduct(node, op, weight, activation, name)


def assignment(model: ir.Model) -> dict[str, Precision]:
    """Product → the precision of optkit in which the graph asks for it."""
    names = {one.node: one.precision for one in products(model)}
    return {node: PRECISIONS[name] for node, name in names.items() if name is not None}


def ranges(model: ir.Model) -> dict[str, tuple[str, float, float]]:
    """Product → the value that it reads as codes, and the smallest and the largest number of these
    codes. Without products that read floats, and without ranges that are computed in each run. The
    graph does not change."""
    copy = model.clone()
    normal_form(copy)
    found = {}
    for node in copy.graph:
        place = graph.constant_weight(node)
        pair = None if place is None else _dequantize(node.inputs[1 - place[0]])
        before = None if pair is None else producer(pair.inputs[0], QUANTIZE)
        codes = None if before is None else codes_of(before)
        if before is not None and before.inputs[0] is not None and codes is not None:
            low, high = codes.range
            source = str(before.inputs[0].name)
            found[str(node.name)] = (source, float(low.min()), float(high.max()))
    return found


def _format(value: ir.Value | None) -> OperandFormat | None:
    codes = operand(value)
    if codes is None:
        return None
    return OperandFormat(codes.dtype.name.lower(), codes.granularity, codes.symmetric)


def operand(value: ir.Value | None) -> QuantizationParameters | None:
    """The codes from which a product reads a value; None: it reads floats."""
    node = _dequantize(value)
    return None if node is None else codes_of(node)


def _dequantize(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear whose numbers a value holds, perhaps in another layout."""
    while (node := producer(value, *_LAYOUT)) is not None:
        value = node.inputs[0]
    return producer(value, DEQUANTIZE)


def _signed(dtype: str) -> str:
    return dtype.removeprefix("u") if dtype.startswith("uint") else dtype
