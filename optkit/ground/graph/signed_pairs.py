"""Pairs of signed codes in a form that ONNX Runtime loads.

    DQ ── Transpose ──►                        DQ ── Transpose ── Q ── DQ ──►
    Q(x, s, int8 z; output_dtype = int8)       Q(x, s, int8 z)

With all optimizations, ONNX Runtime 1.32 makes the zero points of int8 pairs uint8, but not the
attribute output_dtype, and then refuses its own graph ("output_dtype INT8 does not match
y_zero_point type UINT8"). It writes the attribute itself, from opset 21 on, where it repeats a pair
behind an operator that only moves numbers. Here the repetition is written before: the numbers are
the same, because codes of codes are these codes.
"""

from __future__ import annotations

import onnx_ir as ir

from optkit.ground.graph.nodes import FreeNames, is_constant, owner, replace_output

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_MOVES = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


def loadable_pairs(model: ir.Model) -> list[str]:
    """Rewrite the pairs, in place. Returns the names of the nodes that were changed or that got a
    pair behind them."""
    names, done = FreeNames(model), []
    for node in model.graph.all_nodes():
        if node.op_type == _QUANTIZE and "output_dtype" in node.attributes and _zero(node):
            del node.attributes["output_dtype"]
            done.append(str(node.name))
    waiting = [node for node in model.graph.all_nodes() if _is_signed(node)]
    while waiting:
        before = waiting.pop()
        for node in dict.fromkeys(before.outputs[0].consumers()):
            if node.op_type in _MOVES and node.graph is before.graph and _floats_behind(node):
                waiting.append(_repeat(before, node, names))
                done.append(str(node.name))
    return done


def _zero(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _is_signed(node: ir.Node) -> bool:
    """Whether a node dequantizes computed int8 codes with one scale and a zero point."""
    zero = _zero(node)
    if node.op_type != _DEQUANTIZE or zero is None or zero.dtype != ir.DataType.INT8:
        return False
    codes = node.inputs[0]
    source = None if codes is None else codes.producer()
    if is_constant(codes) or (source is not None and is_constant(source.inputs[0])):
        return False  # a weight
    return zero.shape is not None and all(size == 1 for size in zero.shape)


def _floats_behind(node: ir.Node) -> bool:
    """Whether something reads the moved numbers as floats."""
    return node.outputs[0].is_graph_output() or bool(_readers(node))


def _readers(node: ir.Node) -> list[tuple[ir.Node, int]]:
    """Those of the moved numbers as floats; not those inside a branch or a loop, because ONNX
    Runtime aborts when it moves a DequantizeLinear through the branches of an If."""
    uses = [(use.node, use.idx) for use in node.outputs[0].uses()]
    return [
        (reader, index)
        for reader, index in uses
        if reader.op_type != _QUANTIZE and reader.graph is node.graph
    ]


def _repeat(before: ir.Node, node: ir.Node, names: FreeNames) -> ir.Node:
    """Write the pair of `before` behind `node`. Returns its DequantizeLinear."""
    moved, parameters = node.outputs[0], before.inputs[1:]
    parent, whole = owner(node), moved.is_graph_output()
    readers = _readers(node)
    base = f"{node.name}.again"
    quantize = ir.node(_QUANTIZE, [moved, *parameters], name=names.node(f"{base}.{_QUANTIZE}"))
    codes = quantize.outputs[0]
    codes.name, codes.shape = names.value(f"{base}.codes"), moved.shape
    codes.type = ir.TensorType(ir.DataType.INT8)
    name = names.node(f"{base}.{_DEQUANTIZE}")
    dequantize = ir.node(_DEQUANTIZE, [codes, *parameters], name=name)
    result = dequantize.outputs[0]
    result.name, result.shape, result.type = names.value(base), moved.shape, moved.type
    parent.insert_after(node, [quantize, dequantize])
    for reader, index in readers:
        reader.replace_input_with(index, result)
    if whole:
        result.name, moved.name = moved.name, result.name
        replace_output(parent, moved, result)
    return dequantize
