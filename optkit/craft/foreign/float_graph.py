"""The float graph from which a quantized graph was made: Q/DQ pairs removed, weights dequantized.

Rounded weights stay rounded: the file does not contain the others. A quantizer may have removed a
Relu whose work a pair does (codes that begin at zero); such a pair becomes a Relu again.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from optkit.craft.foreign.qdq_parameters import DEQUANTIZE, QUANTIZE, codes_of, is_pair, producer
from optkit.facts.errors import InputRefused
from optkit.ground import graph

_NOT_NEGATIVE = ("Relu", "Sigmoid", "Softmax", "HardSigmoid", "Abs", "Softplus", "Exp", "ReduceL2")
_KEEP_SIGN = ("MaxPool", "GlobalAveragePool", "AveragePool", "Reshape", "Transpose", "Flatten",
              "Squeeze", "Unsqueeze", "Identity", "Cast", "ReduceMean", "ReduceMax", "Slice",
              "GlobalMaxPool", "Resize", DEQUANTIZE, QUANTIZE)  # fmt: skip


def remove_quantization(model: ir.Model) -> int:
    """Replace every Q/DQ pair by its float value, in place. Returns the number of Relus that it
    wrote where a pair cut at zero. Raises InputRefused for a pair whose parameters are computed."""
    names = graph.FreeNames(model)
    relus = 0
    for node in list(model.graph):
        if is_pair(node) and node.op_type == DEQUANTIZE and node.graph is not None:
            relus += _removed(node, names)
    for node in list(model.graph):
        if is_pair(node):
            raise InputRefused(
                "its codes are read by another operator than DequantizeLinear",
                where=f"node {node.name!r} ({node.op_type})",
                hint="give the float model: --float FILE",
            )
    return relus


def _removed(node: ir.Node, names: graph.FreeNames) -> int:
    """Remove one DQ, and its Q if it has no other reader. Returns the number of Relus written."""
    owner, codes, result = graph.owner(node), codes_of(node), node.outputs[0]
    if codes is None:
        raise InputRefused(
            "its scale is computed by the graph",
            where=f"node {node.name!r} ({node.op_type})",
            hint="quantize with static ranges",
        )
    given, relus = node.inputs[0], 0
    stored = graph.array(given)
    if stored is not None:
        numbers = codes.numbers(stored).astype(_float(result))
        value = graph.add_constant(owner, names.value(f"{result.name}.float"), numbers)
    else:
        before = producer(given, QUANTIZE)
        if before is None or before.inputs[0] is None:
            return 0
        value = before.inputs[0]
        if codes.cuts_at_zero and not never_negative(value) and not graph.is_constant(value):
            value, relus = relu(before, names), 1
    _replace(owner, node, value)
    return relus


def relu(before: ir.Node, names: graph.FreeNames) -> ir.Value:
    """The result of a Relu of what a QuantizeLinear reads, written before it."""
    source, owner = before.inputs[0], before.graph
    assert source is not None and owner is not None
    name = names.node(f"{before.name}.relu")
    node = ir.node("Relu", [source], name=name)
    result = node.outputs[0]
    result.name, result.type, result.shape = names.value(name), source.type, source.shape
    owner.insert_before(before, node)
    return result


def never_negative(value: ir.Value | None) -> bool:
    """Whether a value is never negative by the operators that compute it."""
    while (node := value.producer() if value is not None else None) is not None:
        if node.op_type in _NOT_NEGATIVE:
            return True
        if node.op_type == "Clip":
            low = graph.array(node.inputs[1]) if len(node.inputs) > 1 else None
            return low is not None and bool((low >= 0).all())
        if node.op_type not in _KEEP_SIGN:
            return False
        value = node.inputs[0]
    return False


def _replace(owner: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """Let the readers of a DQ read `value`, and remove what nobody reads any more."""
    graph.read_instead(node, value)
    inputs = [one for one in node.inputs if one is not None]
    owner.remove(node, safe=True)
    graph.remove_unread(owner, inputs)


def _float(value: ir.Value) -> np.dtype:
    return (value.dtype or ir.DataType.FLOAT).numpy()
