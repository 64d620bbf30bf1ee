"""Products of codes: a MatMul or Gemm with Q/DQ inputs and a float result, as one operator.

    y = (s_a (q_a − z_a)) · (s_w (q_w − z_w)) + b
      = s_a s_w Σ_k (q_a − z_a)(q_w − z_w) + b         MatMulIntegerToFloat

The sum is exact in 32 bits, so only the order of float roundings differs. The bias is an input of
the operator: the kernel adds it while it writes the result, which an Add would read and write again
(12 to 15 % of a product). All products of one activation read one QuantizeLinear, and products may
share a weight. If the columns of a product are only read in separate ranges, the product is divided
into one product per range.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.write import MICROSOFT, constant, put
from optkit.craft.fusion.pattern import cut_by, made_by, operands, reader
from optkit.craft.fusion.rule import Decline, Rule, remove
from optkit.ground import graph

_A, _W, _SCALE_A, _SCALE_W, _ZERO_A, _ZERO_W, _BIAS = range(7)


@dataclass(frozen=True)
class CodeProduct:
    """`node` multiplies codes; `add` adds a constant bias to its result."""

    node: ir.Node
    activation: ir.Node  # DequantizeLinear
    weight: ir.Node  # DequantizeLinear
    transposed: bool
    add: ir.Node | None
    bias: np.ndarray | None  # [N]


@dataclass(frozen=True)
class Columns:
    """Each of `parts` reads the columns [start, stop) of the result of `product`."""

    product: ir.Node
    parts: tuple[tuple[ir.Value, int, int], ...]


def check_product(node: ir.Node) -> CodeProduct | Decline | None:
    activation, weight = (made_by(value, "DequantizeLinear") for value in node.inputs[:2])
    if node.domain != "" or activation is None or weight is None:
        return None
    transposed = bool(node.attributes.get_int("transB", 0))
    if reason := _why_not(node, activation, weight, 0 if transposed else 1):
        return Decline(reason)
    if reader(node.outputs[0], "QuantizeLinear") is not None:
        return Decline("its result is quantized: ONNX Runtime writes the codes at once")
    if len(activation.outputs[0].shape or ()) < 2:
        return Decline("its activation is not known to have rows")
    codes = graph.array(weight.inputs[0])
    assert codes is not None
    columns = codes.shape[0 if transposed else 1]
    if node.op_type == "MatMul":
        return CodeProduct(node, activation, weight, transposed, *_bias_behind(node, columns))
    bias = _gemm_bias(node, columns)
    if isinstance(bias, Decline):
        return bias
    return CodeProduct(node, activation, weight, transposed, None, bias)


def multiply_codes(match: CodeProduct) -> str:
    node, owner = match.node, graph.owner(match.node)
    codes, scale_w, zero_w = _parameters(match.weight)
    if match.transposed:
        numbers = graph.array(codes)
        assert numbers is not None and codes is not None
        codes = constant(owner, f"{codes.name}_transposed", numbers.T)
    bias = None if match.bias is None else constant(owner, f"{node.name}_bias", match.bias)
    codes_a, scale_a, zero_a = _parameters(match.activation)
    inputs = [codes_a, codes, scale_a, scale_w, zero_a, _unless_zero(zero_w), bias]
    result = (match.add or node).outputs[0]
    removed = [each for each in (match.add, node) if each is not None]
    put(node, "MatMulIntegerToFloat", inputs, result, domain=MICROSOFT, removed=removed)
    return "codes are multiplied" + (", the bias is added on the way out" if bias else "")


def check_columns(node: ir.Node) -> Columns | Decline | None:
    """Whether every reader takes a range of the last axis, and no two of them the same columns."""
    result = node.outputs[0]
    numbers = graph.array(node.inputs[_W])
    if node.domain != MICROSOFT or numbers is None or numbers.ndim != 2:
        return None
    if not any(use.node.op_type in ("Slice", "Split") for use in result.uses()):
        return None
    if result.is_graph_output():
        return Decline("its result is a graph output")
    parts: list[tuple[ir.Value, int, int]] = []
    for use in result.uses():
        ranges = _ranges(use.node, len(result.shape or ()), numbers.shape[1])
        if ranges is None:
            return Decline(f"{use.node.name} reads more than a range of its columns")
        parts += ranges
    parts.sort(key=lambda part: part[1:])
    if any(left[2] > right[1] for left, right in pairwise(parts)):
        return Decline("some of its columns are read twice")
    return Columns(node, tuple(parts))


def part_columns(match: Columns) -> str:
    node, owner = match.product, graph.owner(match.product)
    readers = {use.node for use in node.outputs[0].uses()}
    for index, (value, start, stop) in enumerate(match.parts):
        inputs = list(node.inputs)
        for which in (_W, _SCALE_W, _ZERO_W, _BIAS):
            source = inputs[which] if which < len(inputs) else None
            numbers = graph.array(source)
            if source is not None and numbers is not None and numbers.size > 1:
                cut = numbers[..., start:stop]
                inputs[which] = constant(owner, f"{source.name}_{start}_{stop}", cut)
        name = None if index == 0 else f"{node.name}_{start}_{stop}"
        put(node, "MatMulIntegerToFloat", inputs, value, domain=MICROSOFT, name=name, removed=())
    for each in readers:
        remove(each)
    remove(node)
    return f"{len(match.parts)} products in place of their columns"


def _why_not(node: ir.Node, activation: ir.Node, weight: ir.Node, axis: int) -> str | None:
    if node.attributes.get_int("transA", 0) or node.attributes.get_float("alpha", 1.0) != 1.0:
        return "Gemm with transA or alpha"
    codes_a, _, zero_a = _parameters(activation)
    codes_w, _, zero_w = _parameters(weight)
    numbers = graph.array(codes_w)
    if numbers is None:
        return "its weight is not constant"
    if numbers.ndim != 2 or numbers.dtype not in (np.int8, np.uint8):
        return f"its weight is {numbers.ndim}-d {numbers.dtype}"
    if codes_a is None or codes_a.dtype != ir.DataType.UINT8:
        return "its activation is not uint8"
    if reason := _why_not_its_scales(activation.inputs[1], weight, numbers.shape[axis], axis):
        return reason
    if any(zero is not None and not graph.is_constant(zero) for zero in (zero_a, zero_w)):
        return "a zero point is not constant"
    return None


def _why_not_its_scales(
    scale_a: ir.Value | None, weight: ir.Node, columns: int, axis: int
) -> str | None:
    scale_w = weight.inputs[1]
    if scale_a is None or scale_w is None or _size(scale_a) != 1 or scale_a.dtype != scale_w.dtype:
        return "its activation has more than one scale"
    if scale_w.dtype != ir.DataType.FLOAT or not graph.is_constant(scale_w):
        return "its weight's scale is not constant or not float32"
    if weight.attributes.get_int("block_size", 0):
        return "its weight has a scale per block"
    along = weight.attributes.get_int("axis", 1) % 2 == axis
    if _size(scale_w) != 1 and (_size(scale_w) != columns or not along):
        return "its weight's scales do not lie along the output channels"
    return None


def _parameters(dequantize: ir.Node) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None]:
    codes, scale, *rest = dequantize.inputs
    return codes, scale, rest[0] if rest else None


def _gemm_bias(node: ir.Node, columns: int) -> np.ndarray | Decline | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return None
    numbers = _dequantized(value)
    if numbers is None or node.attributes.get_float("beta", 1.0) != 1.0:
        return Decline("its bias is scaled or not constant")
    bias = _per_column(numbers, columns)
    return Decline("its bias is not one number per column") if bias is None else bias


def _dequantized(value: ir.Value) -> np.ndarray | None:
    """The numbers of a constant, or of the DequantizeLinear of a constant."""
    node = made_by(value, "DequantizeLinear")
    if node is None:
        return graph.array(value)
    codes, scale, zero = (graph.array(each) for each in _parameters(node))
    if codes is None or scale is None or codes.ndim > 1:
        return None
    offset = 0 if zero is None else zero.astype(np.int64)
    return ((codes.astype(np.int64) - offset) * scale.astype(np.float64)).astype(np.float32)


def _bias_behind(node: ir.Node, columns: int) -> tuple[ir.Node | None, np.ndarray | None]:
    """The Add of a constant per column, if it is the only reader of the result."""
    add = reader(node.outputs[0], "Add")
    if add is None:
        return None, None
    index = 0 if add.inputs[0] is node.outputs[0] else 1
    numbers = graph.array(operands(add, index)[1])
    rank = len(node.outputs[0].shape) if node.outputs[0].shape is not None else 0
    if numbers is None or numbers.ndim > rank or numbers.dtype != np.float32:
        return None, None
    bias = _per_column(numbers, columns)
    return (None, None) if bias is None else (add, bias)


def _per_column(numbers: np.ndarray, columns: int) -> np.ndarray | None:
    if numbers.size not in (1, columns) or any(size != 1 for size in numbers.shape[:-1]):
        return None
    if numbers.dtype != np.float32:
        return None
    return np.broadcast_to(numbers.reshape(-1), (columns,)).copy()


def _unless_zero(zero: ir.Value | None) -> ir.Value | None:
    numbers = graph.array(zero)
    return zero if numbers is not None and numbers.any() else None


def _size(value: ir.Value) -> int | None:
    numbers = graph.array(value)
    return None if numbers is None else numbers.size


def _ranges(node: ir.Node, rank: int, columns: int) -> list[tuple[ir.Value, int, int]] | None:
    """(result, start, stop) of the range of the last axis that a Slice or Split takes."""
    if (taken := cut_by(node)) is not None:
        start, stop = taken.within(columns)
        whole = taken.axis in (-1, rank - 1) and start < stop
        return [(node.outputs[0], start, stop)] if whole else None
    along = node.attributes.get_int("axis", 0) in (-1, rank - 1)
    if node.op_type != "Split" or node.domain != "" or not along:
        return None
    last = [value.shape[-1] if value.shape else None for value in node.outputs]
    sizes = [size for size in last if isinstance(size, int)]
    if len(sizes) != len(last) or sum(sizes) != columns:
        return None
    stops = list(accumulate(sizes))
    return list(zip(node.outputs, [0, *stops[:-1]], stops, strict=True))


multiply: Rule[CodeProduct] = Rule(
    "multiply_codes", frozenset({"MatMul", "Gemm"}), check_product, multiply_codes
)
part: Rule[Columns] = Rule(
    "part_columns", frozenset({"MatMulIntegerToFloat"}), check_columns, part_columns
)
