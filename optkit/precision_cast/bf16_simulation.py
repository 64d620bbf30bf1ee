"""A BF16 graph as FP32 nodes with the same rounding, because ONNX Runtime's CPU kernels do not
support BF16.

    bf16:   x ── op ──► y                     every value of y is a BF16 number
    here:   x ── op (FP32) ── Cast(bf16) ── Cast(fp32) ──► y

So each operator accumulates in FP32 and rounds its result once, to nearest, like tensor cores. A
compiler that keeps a fused chain in FP32 rounds less often, so the simulation does not
underestimate the error.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from optkit import graph

_BF16, _FLOAT = ir.DataType.BFLOAT16, ir.DataType.FLOAT

# They only select numbers that they read, which are already rounded.
_EXACT = frozenset(
    {
        *("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Identity", "Flatten"),
        *("Concat", "Split", "Slice", "Gather", "GatherElements", "GatherND", "Tile", "Pad"),
        *("Where", "Max", "Min", "Relu", "Neg", "Abs", "MaxPool", "DepthToSpace"),
    }
)


def simulate_bf16(model: ir.Model) -> None:
    """Turn a BF16 graph (`cast.to_half`) into its FP32 simulation, in place.

    Inputs and outputs that are BF16 themselves become FP32.
    """
    nodes = list(model.graph)
    names = graph.value_names(model)
    for value in model.graph.initializers.values():
        numbers = graph.array(value) if value.dtype == _BF16 else None
        if numbers is not None:
            value.const_value = ir.Tensor(numbers.astype(np.float32), name=value.name)
            value.type = ir.TensorType(_FLOAT)
    for value in model.graph.inputs:
        if value.dtype == _BF16:
            value.type = ir.TensorType(_FLOAT)
            _round(model.graph, value, names)
    for node in nodes:
        for value in node.outputs:
            if value.dtype == _BF16:
                value.type = ir.TensorType(_FLOAT)
                if node.op_type not in _EXACT:
                    _round(model.graph, value, names)
        _widen_attributes(node)


def _round(owner: ir.Graph, value: ir.Value, names: set[str]) -> None:
    """Let every reader of `value` read its BF16 numbers."""
    uses = list(value.uses())
    narrow, wide = (_cast(value, names, dtype, owner) for dtype in (_BF16, _FLOAT))
    producer = value.producer()
    if producer is not None:
        owner.insert_after(producer, [narrow, wide])
    else:
        owner.insert_before(owner[0], [narrow, wide])
    wide.replace_input_with(0, narrow.outputs[0])
    for user, index in uses:
        user.replace_input_with(index, wide.outputs[0])
    if value.is_graph_output():
        name = value.name
        value.name = graph.claim_name(f"{name}.exact", names)
        wide.outputs[0].name = name
        graph.replace_output(owner, value, wide.outputs[0])


def _cast(value: ir.Value, names: set[str], dtype: ir.DataType, owner: ir.Graph) -> ir.Node:
    suffix = "bf16" if dtype == _BF16 else "rounded"
    name = graph.claim_name(f"{value.name}.{suffix}", names)
    output = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
    return ir.node("Cast", [value], {"to": dtype.value}, outputs=[output], name=f"cast_{name}")


def _widen_attributes(node: ir.Node) -> None:
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) == _BF16.value:
        if node.outputs[0].dtype == _FLOAT:
            node.attributes.add(ir.AttrInt64("to", _FLOAT.value))
    elif node.op_type == "ConstantOfShape" and "value" in node.attributes:
        fill = node.attributes["value"].as_tensor()
        if fill.dtype == _BF16:
            wide = ir.Tensor(fill.numpy().astype(np.float32))
            node.attributes.add(ir.AttrTensor("value", wide))
