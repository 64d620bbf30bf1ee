"""A layer norm that an exporter took apart, as the operator it is (Ba et al., arXiv:1607.06450).

    (x − mean x) / √(mean (x − mean x)² + ε) · g + b        LayerNormalization of opset 17

over the last axis. Whole, it accumulates in FP32 whatever its carrier, so a cast to half precision
does not end inside of it: ONNX Runtime's optimizer matches the parts across such a Cast and gives a
graph whose types do not fit. Compilers have one kernel for it, and rescaling reaches its gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from optkit import graph
from optkit.fusion.pattern import ints, made_by, operands, read_once, scalar
from optkit.fusion.rule import Declined, Rule, remove, replace


@dataclass(frozen=True)
class LayerNorm:
    """`node` adds the bias."""

    node: ir.Node
    source: ir.Value
    gain: ir.Value
    bias: ir.Value
    epsilon: float


def check(node: ir.Node) -> LayerNorm | Declined | None:
    for index in (0, 1):
        product, bias = operands(node, index)
        mul = made_by(product, "Mul")
        for inner in (0, 1) if mul is not None else ():
            assert mul is not None
            normalized, gain = operands(mul, inner)
            root = over_root_mean_square(normalized)
            source = _centred(root[0]) if root is not None else None
            if root is None or source is None or gain is None or bias is None:
                continue
            if not _per_feature(gain, source) or not _per_feature(bias, source):
                return Declined("its gain or bias is not one float32 constant per feature")
            if not read_once(mul.outputs[0]):
                return Declined("its result without the bias is also used elsewhere")
            return LayerNorm(node, source, gain, bias, root[1])
    return None


def normalize(match: LayerNorm) -> str:
    node, result = match.node, match.node.outputs[0]
    assert node.graph is not None
    norm = ir.node(
        "LayerNormalization",
        [match.source, match.gain, match.bias],
        {"axis": -1, "epsilon": match.epsilon},
        name=node.name,
    )
    output = norm.outputs[0]
    output.type, output.shape = result.type, result.shape
    node.graph.insert_before(node, norm)
    name = result.name
    replace(result, output)
    output.name = name
    remove(node)
    return "one operator"


def over_root_mean_square(value: ir.Value | None) -> tuple[ir.Value, float] | None:
    """(x, ε) if `value` is x / √(mean(x²) + ε)."""
    node = made_by(value, "Mul", "Div")
    for index in (0, 1) if node is not None else ():
        assert node is not None
        source, factor = operands(node, index)
        root = factor if node.op_type == "Div" else _inverted(factor)
        if node.op_type == "Div" and index == 1:
            break
        root_of = _root_mean_square(root)
        if root_of is not None and source is not None and _same(root_of[0], source):
            return root_of
    return None


def _inverted(value: ir.Value | None) -> ir.Value | None:
    """r where `value` is 1 / r."""
    node = made_by(value, "Reciprocal", "Div")
    if node is None or node.op_type == "Reciprocal":
        return node.inputs[0] if node is not None else None
    return node.inputs[1] if scalar(node.inputs[0]) == 1.0 else None


def _root_mean_square(value: ir.Value | None) -> tuple[ir.Value, float] | None:
    """(x, ε) if `value` is √(mean(x²) + ε) over the last axis."""
    root = made_by(value, "Sqrt")
    add = made_by(root.inputs[0], "Add") if root is not None else None
    for index in (0, 1) if add is not None else ():
        assert add is not None
        mean, epsilon = operands(add, index)
        source, number = _mean_square(mean), scalar(epsilon)
        if source is not None and number is not None and number >= 0:
            return source, number
    return None


def _mean_square(value: ir.Value | None) -> ir.Value | None:
    mean = made_by(value, "ReduceMean")
    if mean is None:
        return None
    squared, source = mean.inputs[0], None
    power, product = made_by(squared, "Pow"), made_by(squared, "Mul")
    if power is not None and scalar(power.inputs[1]) == 2.0:
        source = power.inputs[0]
    elif product is not None and product.inputs[0] is product.inputs[1]:
        source = product.inputs[0]
    return source if source is not None and _over_last(mean, source) else None


def _over_last(mean: ir.Node, source: ir.Value) -> bool:
    if source.shape is None or len(mean.inputs) < 2 or not mean.attributes.get_int("keepdims", 1):
        return False
    return ints(mean.inputs[1]) in ([-1], [len(source.shape) - 1])


def _same(a: ir.Value, b: ir.Value) -> bool:
    """The same value, or the same difference taken twice."""
    first, second = made_by(a, "Sub"), made_by(b, "Sub")
    return a is b or (
        first is not None and second is not None and [*first.inputs] == [*second.inputs]
    )


def _centred(value: ir.Value) -> ir.Value | None:
    """x where `value` is x − mean x."""
    difference = made_by(value, "Sub")
    mean = made_by(difference.inputs[1], "ReduceMean") if difference is not None else None
    if difference is None or mean is None or mean.inputs[0] is not difference.inputs[0]:
        return None
    source = mean.inputs[0]
    return source if source is not None and _over_last(mean, source) else None


def _per_feature(value: ir.Value, source: ir.Value) -> bool:
    numbers, shape = graph.array(value), source.shape
    if numbers is None or shape is None or source.dtype != ir.DataType.FLOAT:
        return False
    return numbers.ndim == 1 and numbers.size == shape[-1] and value.dtype == source.dtype


layer_norm: Rule[LayerNorm] = Rule("layer_norm", frozenset({"Add"}), check, normalize)
