"""A graph in half precision as FP32 nodes whose results are rounded to half precision.

ONNX Runtime's CPU has kernels of FP16 for few operators, and none of BF16. It runs the others in
FP32, and between two of these it leaves out the rounding: a value beyond 65504 stays finite.

    half:   x ── op ──► y                     every value of y is a half-precision number
    here:   x ── op (FP32) ── Cast(half) ── Cast(FP32) ──► y

So each kernel accumulates in FP32 and rounds its result once, to nearest, and beyond the range to
an infinity, like tensor cores. A kernel is one operator, except in two cases:

    products    with the sums and products with constants behind them, and one activation behind
                these (NVIDIA, TensorRT documentation, "Layer fusion")
    codes       a DequantizeLinear is computed by the kernels that read it

A compiler that fuses more rounds less often, so the simulation does not underestimate the error.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from optkit.ground import graph

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FLOAT = ir.DataType.FLOAT

# They only select numbers that they read, which are already rounded.
_EXACT = frozenset(
    {
        *("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Identity", "Flatten"),
        *("Concat", "Split", "Slice", "Gather", "GatherElements", "GatherND", "Tile", "Pad"),
        *("Where", "Max", "Min", "Relu", "Neg", "Abs", "MaxPool", "DepthToSpace"),
    }
)
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_LINEAR = frozenset({"Add", "Mul"})
_ACTIVATIONS = frozenset(
    {"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "Gelu", "Elu", "Selu", "HardSigmoid",
     "HardSwish", "Softplus"}
)  # fmt: skip
_CODED = frozenset({"QuantizeLinear", "DequantizeLinear"})
_EXACTLY = ".exact"  # what the name of a result has more before it is rounded
_SMALL = 1 << 12  # bytes; larger constants stay half, so that the file is not larger than the model


def simulate(model: ir.Model) -> None:
    """Turn a graph in half precision (`cast.to_half`, with or without Q/DQ) into its simulation, in
    place.

    Inputs and outputs that are half precision themselves become FP32.
    """
    _Simulation(model).apply()


def without_rounding(model: ir.Model) -> None:
    """Remove from a simulation, in place, what rounds the results."""
    for wide in list(model.graph):
        half = wide.inputs[0] if wide.op_type == "Cast" else None
        narrow = None if half is None or half.dtype not in _HALVES else half.producer()
        exact = None if narrow is None else narrow.inputs[0]
        if narrow is None or exact is None or exact.dtype != _FLOAT:
            continue
        result = wide.outputs[0]
        result.replace_all_uses_with(exact, replace_graph_outputs=True)
        model.graph.remove([narrow, wide], safe=True)
        if str(exact.name).startswith(f"{result.name}{_EXACTLY}"):
            exact.name = result.name


class _Simulation:
    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._names = graph.FreeNames(model)
        self._first = model.graph[0] if len(model.graph) else None

    def apply(self) -> None:
        nodes = list(self._graph)
        rounded = [(v, v.dtype) for node in nodes for v in _rounded(node)]
        for value in list(self._graph.initializers.values()):
            if value.dtype in _HALVES:
                self._constant(value)
        for value in self._graph.inputs:
            if value.dtype in _HALVES:
                rounded.append((value, value.dtype))
        for node in nodes:
            _widen_attributes(node)
            for value in node.outputs:
                if value.dtype in _HALVES:
                    value.type = ir.TensorType(_FLOAT)
        for value, dtype in rounded:
            value.type = ir.TensorType(_FLOAT)
            self._round(value, dtype)
        for node in nodes:
            self._drop_if_idle(node)

    def _constant(self, value: ir.Value) -> None:
        """Let its readers read FP32. A large one is widened when the graph is loaded."""
        tensor = value.const_value
        assert tensor is not None
        coded = any(node.op_type in _CODED for node in value.consumers())
        if coded or tensor.nbytes <= _SMALL or value.is_graph_output():
            value.const_value = ir.Tensor(tensor.numpy().astype(np.float32), name=value.name)
            value.type = ir.TensorType(_FLOAT)
            return
        uses = list(value.uses())
        wide = self._cast(value, _FLOAT, f"{value.name}.fp32")
        self._graph.insert_before(self._graph[0], wide)
        for node, index in uses:
            node.replace_input_with(index, wide.outputs[0])

    def _round(self, value: ir.Value, dtype: ir.DataType | None) -> None:
        """Let every reader of `value` read its half-precision numbers. The result of a node gives
        its name to them."""
        assert dtype is not None
        producer, uses, name = value.producer(), list(value.uses()), str(value.name)
        after = name
        if producer is None:
            after = f"{name}.rounded"
        else:
            value.name = self._names.value(f"{name}{_EXACTLY}")
        narrow = self._cast(value, dtype, f"{name}.half")
        wide = self._cast(narrow.outputs[0], _FLOAT, after)
        if producer is None:
            self._graph.insert_before(self._graph[0], [narrow, wide])
        else:
            self._graph.insert_after(producer, [narrow, wide])
        for user, index in uses:
            user.replace_input_with(index, wide.outputs[0])
        if producer is not None:
            graph.replace_output(self._graph, value, wide.outputs[0])

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
        output = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
        node = self._names.node(f"cast_{name}")
        return ir.node("Cast", [value], {"to": dtype.value}, outputs=[output], name=node)

    def _drop_if_idle(self, node: ir.Node) -> None:
        """Remove a Cast between FP32 and half precision, which are both FP32 here."""
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "Cast" or source is None or result.dtype != source.dtype:
            return
        if not result.is_graph_output():
            result.replace_all_uses_with(source)
            self._graph.remove(node, safe=True)


def _rounded(node: ir.Node) -> list[ir.Value]:
    """The results of a node of the half-precision graph that its kernel rounds."""
    before = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    inside = before is not None and _goes_on(before)
    if node.op_type == "DequantizeLinear" or _goes_on(node):
        return []
    if node.op_type in _EXACT and not inside:
        return []
    return [value for value in node.outputs if value.dtype in _HALVES]


def _goes_on(node: ir.Node) -> bool:
    """Whether the kernel that computes this node also computes the only node that reads it."""
    result = node.outputs[0]
    readers = [reader for reader, _ in result.uses()]
    if len(readers) != 1 or result.is_graph_output() or not _is_of_product(node):
        return False
    (reader,) = readers
    if reader.op_type in _LINEAR:
        return sum(not graph.is_constant(value) for value in reader.inputs) == 1
    return reader.op_type in _ACTIVATIONS and reader.inputs[0] is result


def _is_of_product(node: ir.Node) -> bool:
    """Whether it is a product, or scales or shifts the result of one by constants."""
    if node.op_type in _PRODUCTS:
        return True
    inner = [value for value in node.inputs if value is not None and not graph.is_constant(value)]
    if node.op_type not in _LINEAR or len(inner) != 1:
        return False
    producer = inner[0].producer()
    return producer is not None and _goes_on(producer)


def _widen_attributes(node: ir.Node) -> None:
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) in _HALVES:
        node.attributes.add(ir.AttrInt64("to", _FLOAT.value))
    elif node.op_type == "ConstantOfShape" and "value" in node.attributes:
        fill = node.attributes["value"].as_tensor()
        if fill.dtype in _HALVES:
            wide = ir.Tensor(fill.numpy().astype(np.float32))
            node.attributes.add(ir.AttrTensor("value", wide))
