"""The costs of a graph: parameters, bytes and multiply-accumulates (MACs)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import onnx_ir as ir

from optkit.facts.errors import InputRefused
from optkit.facts.node_cost import GraphPrecision, GraphSummary, NodeCost, Recurrence
from optkit.facts.tensors import TensorInfo, batch_axis
from optkit.ground.graph.nodes import WEIGHTED, is_constant
from optkit.ground.graph.shapes import axes_in, bind, inputs, outputs

# MatMul and Gemm with a quantized weight, in the domain com.microsoft
_RUNTIME_PRODUCTS = ("MatMulIntegerToFloat", "MatMulNBits", "MatMulBnb4")
_RECURRENT = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
_KNOWN = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc")  # domains
_SIDE = 640  # pixels; of a picture for a detector
_QDQ = ("QuantizeLinear", "DequantizeLinear")


def costs(model: ir.Model, axes: Mapping[str, int]) -> dict[str, NodeCost]:
    """Cost of every node by name, in graph order, with the named axes at these sizes."""
    return {str(node.name): _cost(node) for node in bind(model, axes).graph}


def border_bytes(model: ir.Model, axes: Mapping[str, int]) -> int:
    """Bytes of all inputs and outputs; one of unknown size counts as zero."""
    static = bind(model, axes)
    border = (*static.graph.inputs, *static.graph.outputs)
    return sum(map(_activation_bytes, border))


def peak_live_bytes(model: ir.Model, axes: Mapping[str, int]) -> int:
    """The largest number of bytes of activations that are live at the same time, if nodes run in
    graph order. A value lives from its computation to its last reader; inputs and outputs live all
    the time. Values of unknown size count as zero, and so do the scores of attention, which the
    one kernel that compilers make of it never writes."""
    static = bind(model, axes)
    scores = _scores(static)
    kept = dict.fromkeys((*static.graph.inputs, *static.graph.outputs))
    last = {value: at for at, node in enumerate(static.graph) for value in node.inputs}
    live = peak = sum(_activation_bytes(value) for value in kept)
    for at, node in enumerate(static.graph):
        live += sum(_activation_bytes(v) for v in node.outputs if v not in kept and v not in scores)
        peak = max(peak, live)
        ended = {
            v for v in (*node.inputs, *node.outputs) if v is not None and last.get(v, at) == at
        }
        live -= sum(_activation_bytes(v) for v in ended if v not in kept and v not in scores)
    return peak


_POINTWISE = frozenset({"Add", "Div", "Mul", "Sub", "Where"})


def _scores(model: ir.Model) -> set[ir.Value]:
    """What lies between the two products of softmax(Q Kᵀ) V, of which nothing else reads any."""
    found: set[ir.Value] = set()
    for node in model.graph:
        if node.op_type == "Softmax" and all(map(_attends, node.outputs[0].consumers())):
            found |= _before(node.inputs[0]) | {node.outputs[0]}
    return found


def _before(value: ir.Value | None) -> set[ir.Value]:
    """The value and those that pointwise operators made it of, back to the first product."""
    if value is None or len(value.consumers()) > 1 or (node := value.producer()) is None:
        return set()
    if _attends(node):
        return {value}
    inputs = node.inputs if node.op_type in _POINTWISE else ()
    behind = set().union(*map(_before, inputs))
    return behind | {value} if behind else set()


def _attends(node: ir.Node) -> bool:
    """A product of two activations."""
    return node.op_type == "MatMul" and not any(v and is_constant(v) for v in node.inputs)


def _activation_bytes(value: ir.Value) -> int:
    return 0 if is_constant(value) else _total([value]) or 0


def parameters(model: ir.Model) -> int:
    """The number of trained parameters: float constants, and in a quantized graph their integer
    codes; scales and zero points do not count."""
    return sum(value.const_value.size for value in _weights(model) if value.const_value is not None)


def summary(model: ir.Model, axes: Mapping[str, int] | None = None) -> GraphSummary:
    """A summary of the graph. Axes without a given size count as 1; if the graph does not run at
    this size (the sides of a detector's picture are multiples of 32), all but the batch as 640."""
    taken = inputs(model)
    sizes, counted = _somewhere(model, taken, axes or {})
    ops = Counter(node.op_type for node in model.graph.all_nodes())
    tensors = [value.const_value for value in _constants(model) if value.const_value]
    macs = [cost.macs for cost in counted.values()]
    return GraphSummary(
        inputs=tuple(taken),
        outputs=tuple(outputs(model)),
        opset=dict(sorted(model.opset_imports.items())),
        nodes=sum(ops.values()),
        operators=dict(sorted(ops.items(), key=lambda item: (-item[1], item[0]))),
        parameters=parameters(model),
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        axes=sizes,
        macs=sum(filter(None, macs)),
        macs_unknown=macs.count(None),
        precision=GraphPrecision(
            initializers=dict(sorted(Counter(t.dtype.name.lower() for t in tensors).items())),
            weighted_nodes=sum(ops[op] for op in (*WEIGHTED, *_RUNTIME_PRODUCTS)),
            quantized_nodes=sum(map(_is_quantized, model.graph.all_nodes())),
        ),
    )


def _somewhere(
    model: ir.Model, taken: Sequence[TensorInfo], given: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, NodeCost]]:
    """Sizes of the axes at which the graph runs, and the costs there."""
    sizes = {axis: 1 for info in taken for dim in info.shape for axis in axes_in(dim)}
    sizes |= given
    try:
        return sizes, costs(model, sizes)
    except InputRefused:
        known = {*given, batch_axis(taken)}
        sizes |= {axis: _SIDE for axis in sizes if axis not in known}
        return sizes, costs(model, sizes)


def _cost(node: ir.Node) -> NodeCost:
    fed = [value for value in node.inputs if value is not None]
    return NodeCost(
        op=node.op_type if node.domain in _KNOWN else f"{node.domain}:{node.op_type}",
        macs=_macs(node),
        weight_bytes=sum(v.const_value.nbytes for v in fed if is_constant(v) and v.const_value),
        in_bytes=_total(v for v in fed if not is_constant(v)),
        out_bytes=_total(node.outputs),
        columns=_output_columns(node),
        bits=_bits(node.outputs[0]),
        recurrence=_recurrence(node) if node.op_type in _RECURRENT else None,
    )


def _recurrence(node: ir.Node) -> Recurrence | None:
    """X [steps, batch, inputs], with `layout` 1 [batch, steps, inputs]; W [directions, gates ×
    hidden, inputs]; R [directions, gates × hidden, hidden]; with codes their last axes are
    exchanged."""
    x, w, r = (_dims(value) for value in node.inputs[:3])
    if x is None or w is None or r is None:
        return None
    steps = x[1 if _flag(node, "layout") else 0]
    return Recurrence(steps * w[0], x[0] * x[1] * (prod(w) + prod(r)))


def _output_columns(node: ir.Node) -> int | None:
    if node.op_type not in (*WEIGHTED, *_RUNTIME_PRODUCTS):
        return None
    sizes = _dims(node.outputs[0])
    if not sizes:
        return None
    return sizes[1] if node.op_type in ("Conv", "ConvTranspose") else sizes[-1]


def _macs(node: ir.Node) -> int | None:
    """Conv: outputs × kernel × channels per group; ConvTranspose: the same from its inputs;
    MatMul and Gemm: outputs × inner dimension; ONNX Runtime's products: inputs × columns."""
    if node.op_type in _RUNTIME_PRODUCTS:
        a, columns = _dims(node.inputs[0]), _columns(node)
        return None if a is None or columns is None else prod(a) * columns
    if node.op_type not in WEIGHTED:
        return 0
    a, b, y = (_dims(v) for v in (node.inputs[0], node.inputs[1], node.outputs[0]))
    if a is None or b is None or y is None:
        return None
    if node.op_type == "Conv":
        return prod(y) * prod(b[1:])  # b: [out, in / group, *kernel]
    if node.op_type == "ConvTranspose":
        return prod(a) * prod(b[1:])  # b: [in, out / group, *kernel]
    inner = a[0] if node.op_type == "Gemm" and _flag(node, "transA") else a[-1]
    return prod(y) * inner


def _columns(node: ir.Node) -> int | None:
    if "N" in node.attributes:
        return node.attributes["N"].as_int()
    weight = _dims(node.inputs[1])
    return weight[-1] if weight else None


def _flag(node: ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    return attribute is not None and attribute.as_int() != 0


def _dims(value: ir.Value | None) -> tuple[int, ...] | None:
    shape = value.shape if value is not None else None
    if shape is None or not shape.is_static():
        return None
    return shape.numpy()


def _total(values: Iterable[ir.Value]) -> int | None:
    total = 0
    for value in values:
        dims, bits = _dims(value), _bits(value)
        if dims is None or bits is None:
            return None
        total += (prod(dims) * bits + 7) // 8
    return total


def _bits(value: ir.Value) -> int | None:
    """The bits of one number; None if the dtype is not known, and for texts."""
    unknown = value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING)
    return None if unknown or value.dtype is None else value.dtype.bitwidth


def _constants(model: ir.Model) -> list[ir.Value]:
    return [v for graph in model.graphs() for v in graph.initializers.values()]


def _weights(model: ir.Model) -> list[ir.Value]:
    return [value for value in _constants(model) if _is_weight(value)]


def _is_weight(value: ir.Value) -> bool:
    uses = [(use.node.op_type, use.idx) for use in value.uses()]
    if any(op in _QDQ and index == 0 for op, index in uses):
        return True
    if uses and all(op in _QDQ for op, _ in uses):
        return False  # a scale or a zero point
    return value.dtype is not None and value.dtype.is_floating_point()


def _is_quantized(node: ir.Node) -> bool:
    """Whether both operands come from a DequantizeLinear. (Weights may also be integers that were
    folded.)"""
    if node.op_type in _RUNTIME_PRODUCTS:
        return True
    if node.op_type not in WEIGHTED:
        return False
    return all(_dequantized(value) for value in node.inputs[:2])


def _dequantized(value: ir.Value | None) -> bool:
    producer = value.producer() if value is not None else None
    while producer is not None and producer.op_type == "Transpose":
        source = producer.inputs[0]
        producer = source.producer() if source is not None else None
    return producer is not None and producer.op_type == "DequantizeLinear"
