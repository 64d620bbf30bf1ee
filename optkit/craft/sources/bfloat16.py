"""Values of bfloat16 in a graph, computed as torch does: in float32, the result of each operator of
torch rounded.

Falcon's ALiBi is such a product, in a model that is float32 otherwise. An operator of torch that is
several nodes of the graph, such as attention, rounds once, at its end. On a CPU, ONNX Runtime has
no kernels for this type, and its optimizer crashes when it moves a Transpose of it. So only pairs
of casts touch the type, which round; all values are float32.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from optkit.craft.sources.dynamic_axes import values

_OPERATOR = "pkg.torch.onnx.name_scopes"  # the modules around an operator of torch, then its name
_HALF, _SINGLE = ir.DataType.BFLOAT16, ir.DataType.FLOAT
_MOVES = frozenset(
    {"Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Concat", "Gather",
     "GatherElements", "GatherND", "Split", "Slice", "Expand", "Where", "If", "Loop", "Scan"}
)  # fmt: skip
"""Operators whose results have no rounding, because all their numbers are those of inputs."""


def rounded(model: ir.Model) -> None:
    """Replace the type. No input of the graph has it, because numpy does not know it."""
    if all(value.dtype != _HALF for value in values(model)):
        return
    passes.ShapeInferencePass()(model)  # functions of the exporter have values without a type
    for weight in model.graph.initializers.values():
        if weight.dtype == _HALF and weight.const_value is not None:
            weight.const_value = ir.tensor(weight.const_value.numpy().astype(np.float32))
            weight.type = ir.TensorType(_SINGLE)
    for node in list(model.graph.all_nodes()):
        halves = [value for value in node.outputs if value.dtype == _HALF]
        # an attribute of a Cast or a ConstantOfShape names the type
        if halves and (node.op_type == "Cast" or not any(node.inputs)):
            _widen(halves[0], node)
            continue
        for result in halves:
            result.type = ir.TensorType(_SINGLE)
            if node.op_type not in _MOVES and not _is_inside(result, node):
                _round(result, node)
    _remove_casts_of_singles(model)


def _is_inside(value: ir.Value, node: ir.Node) -> bool:
    """Whether only nodes of the same operator of torch read a result of the node."""
    operator = node.metadata_props.get(_OPERATOR)
    readers = {reader.metadata_props.get(_OPERATOR) for reader in value.consumers()}
    return operator is not None and readers == {operator} and not value.is_graph_output()


def _round(value: ir.Value, node: ir.Node) -> None:
    """Its readers get it rounded. `node`: of which it is a result."""
    half = _cast(value, _HALF, node)
    single = _cast(half.outputs[0], _SINGLE, node)
    value.replace_all_uses_with(single.outputs[0], replace_graph_outputs=True)
    half.replace_input_with(0, value)
    _graph(node).insert_after(node, [half, single])


def _widen(value: ir.Value, node: ir.Node) -> None:
    """Its readers get it in float32. `node`: of which it is a result."""
    single = _cast(value, _SINGLE, node)
    value.replace_all_uses_with(single.outputs[0], replace_graph_outputs=True)
    single.replace_input_with(0, value)
    _graph(node).insert_after(node, single)


def _cast(value: ir.Value, dtype: ir.DataType, beside: ir.Node) -> ir.Node:
    """A Cast with the metadata of the node `beside`."""
    cast = ir.node("Cast", [value], {"to": dtype.value}, metadata_props=dict(beside.metadata_props))
    cast.outputs[0].type = ir.TensorType(dtype)
    cast.outputs[0].shape = value.shape
    return cast


def _remove_casts_of_singles(model: ir.Model) -> None:
    """Casts of the model from bfloat16, whose operand is in float32 now."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Cast" or (value := node.inputs[0]) is None:
            continue
        result = node.outputs[0]
        if value.dtype == result.dtype == _SINGLE and not result.is_graph_output():
            result.replace_all_uses_with(value)
            _graph(node).remove(node, safe=True)


def _graph(node: ir.Node) -> ir.Graph | ir.Function:
    assert node.graph is not None
    return node.graph
