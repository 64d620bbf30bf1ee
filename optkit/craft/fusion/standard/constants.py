"""Constants that are computed in advance: nodes whose inputs are all constant, and known parts of
shapes.

f(c) is a constant if f is deterministic and c is constant; Shape(x)[i] is a constant if axis i of x
is static. Q/DQ of weights are not folded, because they express a precision.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.rule import GROWTH_LIMIT_BYTES, Decline, Rule, remove
from optkit.facts.errors import InputRefused
from optkit.ground import graph

KEPT = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "Constant"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial", "Dropout"),
        *("If", "Loop", "Scan", "SequenceMap"),
    }
)
"""Operators that stay as they are: they express a precision, draw random numbers, or have graphs
inside."""

Folded = tuple[ir.Node, list[np.ndarray]]


def check_constants(node: ir.Node) -> Folded | Decline | None:
    if node.op_type in KEPT or node.domain != "":
        return None
    if not all(value is None or graph.is_constant(value) for value in node.inputs):
        return None
    if any(
        value is not None and value.dtype == ir.DataType.STRING
        for value in (*node.inputs, *node.outputs)
    ):
        return Decline("texts are not computed beforehand: an expression may take any time")
    return _too_large(node) or _computed(node)


def _computed(node: ir.Node) -> Folded | Decline:
    version = node.version or (node.graph.opset_imports.get("", 21) if node.graph else 21)
    try:
        arrays = graph.evaluate(node, [graph.array(value) for value in node.inputs], version)
    except InputRefused as error:
        return Decline(f"the reference cannot compute it: {error.message}")
    for value, result in zip(node.outputs, arrays, strict=True):
        if value.dtype is not None and value.dtype.numpy() != result.dtype:
            return Decline(f"the reference returned {result.dtype} for {value.dtype}")
    return node, arrays


def check_shape(node: ir.Node) -> Folded | Decline | None:
    """Shape(x), or Gather or Slice of it, if every selected axis is static."""
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node.op_type == "Shape":
        sizes = _dims(node)
    elif source is not None and source.op_type == "Shape":
        sizes = _select(node, _dims(source))
    else:
        return None
    if sizes is None or any(dim is None for dim in sizes.flat):
        return None
    if node.outputs[0].is_graph_output():
        return Decline("its result is a graph output")
    return node, [np.asarray(sizes, dtype=np.int64)]


def fold(match: Folded) -> str:
    node, arrays = match
    assert node.graph is not None
    for value, numbers in zip(node.outputs, arrays, strict=True):
        constant = graph.add_constant(node.graph, str(value.name), numbers)
        value.replace_all_uses_with(constant)
    remove(node)
    return f"{node.op_type} became {' '.join(str(a.shape) for a in arrays)} constant"


def _too_large(node: ir.Node) -> Decline | None:
    """Decided from inferred shapes alone, before anything is computed or allocated."""
    total = 0
    for value in node.outputs:
        if value.is_graph_output():
            return Decline("its result is a graph output")
        if value.shape is None or not value.shape.is_static() or value.dtype is None:
            return Decline("the size of its result is not known beforehand")
        total += prod(value.shape.numpy()) * value.dtype.bitwidth // 8
    freed = sum(
        value.const_value.nbytes
        for value in set(node.inputs)
        if value is not None and value.const_value is not None and value.consumers() == (node,)
    )
    if total - freed > GROWTH_LIMIT_BYTES:
        return Decline(f"its result would add {total - freed:,} bytes to the model")
    return None


def _dims(shape_node: ir.Node) -> np.ndarray | None:
    """Result of a Shape node as an array of objects: None for an axis that is not static."""
    value = shape_node.inputs[0]
    if value is None or value.shape is None:
        return None
    start, end = shape_node.attributes.get_int("start", 0), shape_node.attributes.get_int("end")
    dims = [dim if isinstance(dim, int) else None for dim in value.shape]
    return np.asarray(dims, dtype=object)[start:end]


def _select(node: ir.Node, dims: np.ndarray | None) -> np.ndarray | None:
    """The elements of `dims` that a Gather or Slice with constant indices selects."""
    parameters = [graph.array(value) for value in node.inputs[1:]]
    if dims is None or any(numbers is None for numbers in parameters):
        return None
    if node.op_type == "Gather":
        indices = np.asarray(parameters[0])
        return np.asarray(dims[indices], object) if _within(indices, dims.size) else None
    start, end, *rest = (int(np.ravel(numbers)[0]) for numbers in parameters if numbers is not None)
    step = rest[1] if len(rest) > 1 else 1
    return dims[start:end:step] if step > 0 else None


def _within(indices: np.ndarray, size: int) -> bool:
    return bool(((indices >= -size) & (indices < size)).all())


fold_constants: Rule[Folded] = Rule("fold_constants", frozenset(), check_constants, fold)
fold_shapes: Rule[Folded] = Rule(
    "fold_shapes", frozenset({"Shape", "Gather", "Slice"}), check_shape, fold
)
