"""Conversions of older opsets to opset 21 that onnx's converter does not do, and back to older
opsets, which it does not do at all.

before the conversion    an empty tensor for a missing input · attributes with a default value · a
                         Scan with a batch axis, which cannot be converted
after it                 the scale and bias per group of a GroupNormalization
back                     Gelu as the operators that it stands for · the names of GridSample's modes
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np
import onnx_ir as ir

from optkit.facts.errors import InputRefused
from optkit.ground.graph.nodes import add_constant, claim_name, value_names

_GROUPED = range(18, 21)  # opsets whose GroupNormalization has scales per group, not per channel
_SCAN_OF_BATCHES = 8
_GELU = 20  # the first opset that has it; GridSample has other names of its modes from here on
_MODES = {"linear": "bilinear", "cubic": "bicubic"}


def prepare(model: ir.Model) -> None:
    """Changes that must be made before onnx's conversion, in place. Raises InputRefused for an
    operator that no later opset has."""
    opset = model.opset_imports.get("", 0)
    for node in model.graph.all_nodes():
        if node.domain != "":
            continue
        if node.op_type == "Scan" and opset == _SCAN_OF_BATCHES:
            raise InputRefused(
                "Scan in opset 8 has a batch axis, which later opsets do not support",
                where=node.name or str(node.outputs[0].name),
                hint="export the model again at opset 9 or later",
            )
        if node.op_type == "Resize" and opset < 13:
            for index in (1, 2):  # the region of interest and the scales
                if _is_empty(node, index):
                    node.replace_input_with(index, None)
        if node.op_type == "MeanVarianceNormalization" and "axes" not in node.attributes:
            # the strict inference of onnx 1.23 loses the default inside the body of the function
            node.attributes.add(ir.AttrInt64s("axes", [0, 2, 3]))


def complete(model: ir.Model, opset: int) -> None:
    """Changes that onnx's conversion from `opset` does not make, in place."""
    if opset not in _GROUPED:
        return
    names = value_names(model)
    for node in list(model.graph.all_nodes()):
        if node.op_type == "GroupNormalization" and node.domain == "":
            _scale_channels(node, names)


def older_forms(model: ir.Model, opset: int) -> None:
    """Write operators in forms that this older opset has, in place. What has none stays."""
    if opset >= _GELU:
        return
    names = value_names(model)
    for node in list(model.graph.all_nodes()):
        if node.domain != "":
            continue
        if node.op_type == "Gelu":
            _write_gelu(node, names)
        elif node.op_type == "GridSample" and "mode" in node.attributes:
            mode = node.attributes["mode"].as_string()
            node.attributes.add(ir.AttrString("mode", _MODES.get(mode, mode)))


def _write_gelu(node: ir.Node, names: set[str]) -> None:
    """x · ½ (1 + erf(x / √2)), or x · ½ (1 + tanh(√(2/π) (x + 0.044715 x³)))"""
    x, result, owner = node.inputs[0], node.outputs[0], node.graph
    assert x is not None and isinstance(owner, ir.Graph)
    dtype = (x.dtype or ir.DataType.FLOAT).numpy()

    def number(value: float) -> ir.Value:
        name = claim_name(f"{node.name}.number", names)
        return add_constant(owner, name, np.array(value, dtype))

    def add(op: str, *inputs: ir.Value) -> ir.Value:
        made = ir.node(op, inputs, name=f"{node.name}.{op}_{len(names)}")
        made.outputs[0].name = claim_name(f"{result.name}.{op.lower()}", names)
        made.outputs[0].type, made.outputs[0].shape = x.type, x.shape
        owner.insert_before(node, made)
        return made.outputs[0]

    if node.attributes.get_string("approximate", "none") == "tanh":
        cube = add("Mul", add("Pow", x, number(3.0)), number(0.044715))
        gate = add("Tanh", add("Mul", add("Add", x, cube), number(sqrt(2 / pi))))
    else:
        gate = add("Erf", add("Mul", x, number(sqrt(0.5))))
    half = add("Mul", x, number(0.5))
    node.op_type = "Mul"
    node.attributes.clear()
    node.resize_inputs(2)
    node.replace_input_with(0, half)
    node.replace_input_with(1, add("Add", gate, number(1.0)))


def forget_dims(model: ir.Model, unknown: Callable[[int | ir.SymbolicDim], bool]) -> None:
    """Replace dimensions without information by unknown dimensions, in place."""
    for part in model.graphs():
        for value in ir.convenience.create_value_mapping(part, include_subgraphs=False).values():
            if any(map(unknown, value.shape or ())):
                value.shape = ir.Shape(None if unknown(dim) else dim for dim in value.shape or ())


def is_placeholder(dim: int | ir.SymbolicDim) -> bool:
    """Whether the dimension says nothing: an axis of size −1 or with the name "?" has any size."""
    return dim < 0 if isinstance(dim, int) else dim.value == "?"


def _is_empty(node: ir.Node, index: int) -> bool:
    value = node.inputs[index] if index < len(node.inputs) else None
    return value is not None and value.shape is not None and 0 in value.shape


def _scale_channels(node: ir.Node, names: set[str]) -> None:
    """Repeat each group's scale and bias for its channels: [G] → [G, 1] → [G, C / G] → [C]."""
    source, owner = node.inputs[0], node.graph
    assert source is not None and isinstance(owner, ir.Graph)

    def constant(*numbers: int) -> ir.Value:
        name = claim_name(f"{node.name or 'GroupNormalization'}.groups", names)
        return add_constant(owner, name, np.array(numbers, np.int64))

    def add(op: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        inserted = ir.node(op, inputs, attributes)
        inserted.outputs[0].name = claim_name(f"{node.outputs[0].name}.{op.lower()}", names)
        owner.insert_before(node, inserted)
        return inserted.outputs[0]

    channels = add("Shape", source, start=1, end=2)
    each = add("Div", channels, constant(node.attributes["num_groups"].as_int()))
    shape = add("Concat", constant(1), each, axis=0)
    axis, flat = constant(1), constant(-1)
    for index in (1, 2):
        numbers = node.inputs[index]
        assert numbers is not None
        spread = add("Expand", add("Unsqueeze", numbers, axis), shape)
        node.replace_input_with(index, add("Reshape", spread, flat))
