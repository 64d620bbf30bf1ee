"""Integer operators (QLinearConv, QLinearMatMul, QGemm, MatMulInteger, ...) as the Q/DQ pairs and
float operators that mean the same.

    QLinear…(codes)      Q( operator( DQ(codes), DQ(weight) ) ), with the int32 bias as floats
    DynamicQuantizeLinear → MatMulInteger → Cast → Mul      MatMul( x, DQ(weight) )

The second changes numbers: activations are not rounded any more, because their ranges are computed
in each run, and TensorRT has no such operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from optkit.craft.foreign.qdq_parameters import DEQUANTIZE, QUANTIZE, is_pair, producer
from optkit.ground import graph

_FLOAT = ir.DataType.FLOAT
_CODES = (ir.DataType.INT8, ir.DataType.UINT8)
_MOVES = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather",
          "Identity", "Split", "Expand", "DepthToSpace", "SpaceToDepth")  # fmt: skip
_ELEMENTWISE = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_UNARY = {
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearSoftmax": "Softmax",
    "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
}
# attributes of com.microsoft that the standard operator does not have
_DROPPED = ("channels_last", "opset", "alpha_gemm")


class NodeWriter:
    """Writes nodes before `node`, which they replace."""

    def __init__(self, node: ir.Node, names: graph.FreeNames) -> None:
        self.node, self.names = node, names
        self.owner = graph.owner(node)

    def dequantized(self, index: int, axis: int = 1) -> ir.Value:
        """The floats of the codes in inputs index, index + 1 (scale) and index + 2 (zero point)."""
        codes, scale = self.node.inputs[index : index + 2]
        inputs = [codes, scale, self._input(index + 2)]
        return self.write(DEQUANTIZE, inputs, {"axis": axis}, _FLOAT)

    def quantized(self, value: ir.Value, index: int) -> ir.Value:
        """The codes of a value, with the scale in input `index` and its zero point after it;
        without one, 0 in the type of the node's own codes (com.microsoft)."""
        zero = self._input(index + 1)
        if zero is None:
            dtype = next(v.dtype for v in self.node.inputs if v is not None and v.dtype in _CODES)
            assert dtype is not None
            name = self.names.value(f"{self.node.name}.zero_point")
            zero = graph.add_constant(self.owner, name, np.zeros((), dtype.numpy()))
        return self.write(QUANTIZE, [value, self.node.inputs[index], zero], {}, zero.dtype)

    def _input(self, index: int) -> ir.Value | None:
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def constant(self, numbers: np.ndarray) -> ir.Value:
        name = self.names.value(f"{self.node.name}.bias")
        return graph.add_constant(self.owner, name, numbers)

    def write(
        self,
        op: str,
        inputs: list[ir.Value | None],
        attributes: Mapping[str, ir.Attr] | Mapping[str, int],
        dtype: ir.DataType | None,
        name: str | None = None,
    ) -> ir.Value:
        new = ir.node(
            op, inputs, dict(attributes), name=self.names.node(name or f"{self.node.name}.{op}")
        )
        result = new.outputs[0]
        result.name = self.names.value(f"{new.name}.output")
        result.type = None if dtype is None else ir.TensorType(dtype)
        self.owner.insert_before(self.node, new)
        return result

    def replace(self, value: ir.Value) -> None:
        """Let the readers of the node's result read `value`, and remove the node."""
        _take_over(self.owner, self.node.outputs[0], value, self.node)


def to_pairs(model: ir.Model) -> list[str]:
    """Rewrite every integer operator of the graph, in place. Returns the names of their nodes."""
    names = graph.FreeNames(model)
    done = []
    for node in list(model.graph):
        write = _FORMS.get(node.op_type)
        if write is not None:
            write(NodeWriter(node, names))
            done.append(str(node.name))
    done += _moves_on_floats(model, names)
    if done:
        graph.infer_shapes(model)
    return done


def dynamic_to_weight_only(model: ir.Model) -> list[str]:
    """Products whose activations are quantized in each run read floats instead, and their weight
    through a DequantizeLinear. Returns their names."""
    names = graph.FreeNames(model)
    done = []
    for node in list(model.graph):
        if node.op_type in ("MatMulInteger", "ConvInteger") and _dynamic(NodeWriter(node, names)):
            done.append(str(node.name))
    if done:
        graph.infer_shapes(model)
    return done


def integer_operators(model: ir.Model) -> list[str]:
    """The integer operators that are still there: "op node"."""
    known = {*_FORMS, "MatMulInteger", "ConvInteger", "DynamicQuantizeLinear"}
    return [
        f"{n.op_type} {n.name!r}"
        for n in model.graph.all_nodes()
        if n.op_type in known or n.op_type.startswith("QLinear")
    ]


def _conv(w: NodeWriter) -> None:
    node = w.node
    x, weight = w.dequantized(0), w.dequantized(3, axis=0)
    inputs = [x, weight]
    if (bias := _bias(w, 8, 1, 4)) is not None:
        inputs.append(bias)
    result = w.write("Conv", [*inputs], _attributes(node), _FLOAT, str(node.name))
    w.replace(w.quantized(result, 6))


def _matmul(w: NodeWriter) -> None:
    a, b = w.dequantized(0), w.dequantized(3, axis=-1)
    result = w.write("MatMul", [a, b], {}, _FLOAT, str(w.node.name))
    w.replace(w.quantized(result, 6))


def _gemm(w: NodeWriter) -> None:
    node = w.node
    turned = node.attributes.get_int("transB", 0)
    inputs = [w.dequantized(0), w.dequantized(3, axis=0 if turned else 1)]
    if (bias := _bias(w, 6, 1, 4)) is not None:
        inputs.append(bias)
    result = w.write("Gemm", [*inputs], _attributes(node), _FLOAT, str(node.name))
    quantized = len(node.inputs) > 8 and node.inputs[8] is not None
    w.replace(w.quantized(result, 7) if quantized else result)


def _elementwise(w: NodeWriter) -> None:
    a, b = w.dequantized(0), w.dequantized(3)
    result = w.write(_ELEMENTWISE[w.node.op_type], [a, b], {}, _FLOAT, str(w.node.name))
    w.replace(w.quantized(result, 6))


def _unary(w: NodeWriter) -> None:
    op, attributes = _UNARY[w.node.op_type], _attributes(w.node)
    result = w.write(op, [w.dequantized(0)], attributes, _FLOAT, str(w.node.name))
    w.replace(w.quantized(result, 3))


def _concat(w: NodeWriter) -> None:
    parts: list[ir.Value | None] = [w.dequantized(i) for i in range(2, len(w.node.inputs), 3)]
    result = w.write("Concat", parts, _attributes(w.node), _FLOAT, str(w.node.name))
    w.replace(w.quantized(result, 0))


_FORMS: Mapping[str, Callable[[NodeWriter], None]] = MappingProxyType(
    {
        "QLinearConv": _conv,
        "QLinearMatMul": _matmul,
        "QGemm": _gemm,
        "QLinearConcat": _concat,
        **dict.fromkeys(_ELEMENTWISE, _elementwise),
        **dict.fromkeys(_UNARY, _unary),
    }
)


def _bias(w: NodeWriter, index: int, x_scale: int, w_scale: int) -> ir.Value | None:
    """The int32 bias of an integer product as floats: its scale is that of x times that of w."""
    inputs = w.node.inputs
    codes = graph.array(inputs[index]) if len(inputs) > index else None
    if codes is None:
        return None
    a, b = graph.array(inputs[x_scale]), graph.array(inputs[w_scale])
    assert a is not None and b is not None
    scale = a.astype(np.float64).reshape(-1) * b.astype(np.float64).reshape(-1)
    scale = scale * w.node.attributes.get_float("alpha", 1.0)
    return w.constant((codes.astype(np.float64) * scale).astype(np.float32))


def _attributes(node: ir.Node) -> dict[str, ir.Attr]:
    return {
        name: attribute
        for name, attribute in node.attributes.items()
        if name not in _DROPPED and isinstance(attribute, ir.Attr)
    }


def _dynamic(w: NodeWriter) -> bool:
    """Rewrite one product that reads a DynamicQuantizeLinear. False if what follows it is not
    Cast and Mul with the product of both scales."""
    node = w.node
    source = producer(node.inputs[0], "DynamicQuantizeLinear")
    cast = _only_reader(node.outputs[0], "Cast")
    scaled = None if cast is None else _only_reader(cast.outputs[0], "Mul")
    if source is None or cast is None or scaled is None:
        return False
    factor = next((value for value in scaled.inputs if value is not cast.outputs[0]), None)
    scale = _weight_scale(factor, source.outputs[1])
    if scale is None:
        return False
    op, axis = ("Conv", 0) if node.op_type == "ConvInteger" else ("MatMul", -1)
    zero = node.inputs[3] if len(node.inputs) > 3 else None
    stored = graph.add_constant(w.owner, w.names.value(f"{node.name}.scale"), scale)
    inputs = [node.inputs[1], stored, _fitting(w, zero, scale)]
    weight = w.write(DEQUANTIZE, inputs, {"axis": axis}, _FLOAT)
    result = w.write(op, [source.inputs[0], weight], _attributes(node), _FLOAT, str(node.name))
    _take_over(w.owner, scaled.outputs[0], result, scaled)
    return True


def _weight_scale(factor: ir.Value | None, activation_scale: ir.Value) -> np.ndarray | None:
    """The constant whose product with `activation_scale` is `factor`, rank 0 or 1; None if `factor`
    is no such product."""
    product = producer(factor, "Mul")
    if product is None or activation_scale not in product.inputs:
        return None
    constants = [value for value in product.inputs if graph.is_constant(value)]
    scale = graph.array(constants[0]) if len(constants) == 1 else None
    if scale is None:
        return None
    return scale.reshape(-1) if scale.size > 1 else scale.reshape(())


def _fitting(w: NodeWriter, zero: ir.Value | None, scale: np.ndarray) -> ir.Value | None:
    """A zero point in the shape of the scale."""
    numbers = graph.array(zero)
    if numbers is None:
        return None
    fitting = np.broadcast_to(
        numbers.reshape(-1) if numbers.size > 1 else numbers.reshape(()), scale.shape
    )
    name = w.names.value(f"{w.node.name}.zero_point")
    return graph.add_constant(w.owner, name, np.array(fitting))


def _moves_on_floats(model: ir.Model, names: graph.FreeNames) -> list[str]:
    """Operators that only move codes (MaxPool, Reshape, ...) run on floats, between a DQ and a Q
    with the parameters of the codes. The numbers stay the same."""
    done = []
    for node in list(model.graph):
        before = producer(node.inputs[0], QUANTIZE) if node.inputs else None
        if node.op_type not in _MOVES or before is None or len(node.outputs) != 1:
            continue
        w = NodeWriter(node, names)
        parameters = [*before.inputs[1:]]
        floats = w.write(DEQUANTIZE, [before.outputs[0], *parameters], {}, _FLOAT)
        moved = w.write(
            node.op_type, [floats, *node.inputs[1:]], _attributes(node), _FLOAT, str(node.name)
        )
        w.replace(w.write(QUANTIZE, [moved, *parameters], {}, before.outputs[0].dtype))
        done.append(str(node.name))
    return done


def _only_reader(value: ir.Value, op: str) -> ir.Node | None:
    readers = value.consumers()
    return readers[0] if len(readers) == 1 and readers[0].op_type == op else None


def _take_over(owner: ir.Graph, old: ir.Value, new: ir.Value, node: ir.Node) -> None:
    """Let the readers of `old`, the result of `node`, read `new`; then remove `node` and what only
    it reads."""
    new.shape = old.shape
    if old.is_graph_output():
        name, old.name = old.name, f"{old.name}.old"
        graph.replace_output(owner, old, new)
        new.name = name
    old.replace_all_uses_with(new)
    inputs = [value for value in node.inputs if value is not None]
    owner.remove(node, safe=True)
    graph.remove_unread(owner, inputs)


def pairs(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if is_pair(node)]
