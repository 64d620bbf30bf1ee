"""Nodes that change nothing: y = x, so readers of y read x.

Identity · Dropout at inference · Cast to the same dtype · Reshape, Expand, Flatten to the same
shape · Transpose with the identity permutation · Slice of everything · Pad by nothing · Concat of
one · x + 0, x − 0, x · 1, x / 1. Also CastLike, which becomes a Cast when the dtype of its second
input is known, and nodes whose results nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.rule import Decline, Rule, keeps_output, remove, replace
from optkit.ground import graph


@dataclass(frozen=True)
class Repeat:
    """`node` only repeats `source`."""

    node: ir.Node
    source: ir.Value


def check_noop(node: ir.Node) -> Repeat | Decline | None:
    if node.domain != "":
        return None
    index = next((i for i in _repeatable(node) if _REPEATS[node.op_type](node, i)), None)
    source = node.inputs[index] if index is not None else None
    if source is None:
        return None
    return keeps_output(node.outputs[0], source) or Repeat(node, source)


def skip(match: Repeat) -> str:
    replace(match.node.outputs[0], match.source)
    remove(match.node)
    return f"{match.node.op_type} changed nothing"


def check_castlike(node: ir.Node) -> ir.Node | None:
    return node if node.domain == "" and _like(node) is not None else None


def settle(node: ir.Node) -> str:
    dtype = _like(node)
    assert dtype is not None
    node.op_type = "Cast"
    node.resize_inputs(1)
    node.attributes.add(ir.AttrInt64("to", dtype.value))
    return f"its dtype is {dtype.name.lower()}"


def check_dead(node: ir.Node) -> ir.Node | None:
    used = any(value.uses() or value.is_graph_output() for value in node.outputs)
    return None if used else node


def drop(node: ir.Node) -> str:
    remove(node)
    return f"{node.op_type} had no user"


Dims = Sequence[int | ir.SymbolicDim]


def unequal(a: Dims, b: Dims) -> int | None:
    """The number of axes of two shapes that are not known to be equal; None if the shapes certainly
    differ.

    A named axis equals itself. If both shapes have the same number of elements, one such axis may
    be ignored.
    """
    pairs = list(zip(a, b, strict=False))
    if len(a) != len(b) or any(
        isinstance(p, int) and isinstance(q, int) and p != q for p, q in pairs
    ):
        return None
    return sum(p != q or p == ir.SymbolicDim(None) for p, q in pairs)


def same_shape(a: ir.Value | None, b: ir.Value | None, unknown: int = 0) -> bool:
    """Whether both shapes are known and equal, except for `unknown` axes."""
    if a is None or b is None or a.shape is None or b.shape is None:
        return False
    count = unequal(a.shape.dims, b.shape.dims)
    return count is not None and count <= unknown


def _like(node: ir.Node) -> ir.DataType | None:
    return node.inputs[1].dtype if node.inputs[1] is not None else None


def _repeatable(node: ir.Node) -> tuple[int, ...]:
    """The inputs that the result may repeat: both for a commutative operator."""
    return (0, 1) if node.op_type in ("Add", "Mul") else (0,)


def _always(node: ir.Node, index: int) -> bool:
    return True


def _same_shape(node: ir.Node, index: int) -> bool:
    return same_shape(node.inputs[index], node.outputs[0])


def _same_order(node: ir.Node, index: int) -> bool:
    """For an operator that keeps the elements and their order."""
    return same_shape(node.inputs[index], node.outputs[0], unknown=1)


def _same_dtype(node: ir.Node, index: int) -> bool:
    source, result = node.inputs[index], node.outputs[0]
    return source is not None and source.dtype is not None and source.dtype == result.dtype


def _inference_dropout(node: ir.Node, index: int) -> bool:
    mask = node.outputs[1] if len(node.outputs) > 1 else None
    if mask is not None and (mask.uses() or mask.is_graph_output()):
        return False
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None:
        return True
    flag = graph.array(training)
    return flag is not None and not flag.any()


def _identity_permutation(node: ir.Node, index: int) -> bool:
    order = node.attributes.get_ints("perm")
    return order is not None and list(order) == sorted(order)


def _whole_slice(node: ir.Node, index: int) -> bool:
    steps = graph.array(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    return steps is not None and bool((steps > 0).all()) and _same_shape(node, index)


def _pads_nothing(node: ir.Node, index: int) -> bool:
    pads = graph.array(node.inputs[1])
    return pads is not None and not pads.any()


def _only_one(node: ir.Node, index: int) -> bool:
    return len(node.inputs) == 1


def _neutral(number: int) -> Callable[[ir.Node, int], bool]:
    """Whether the other operand is the constant `number`, and its broadcast adds no axis."""

    def holds(node: ir.Node, index: int) -> bool:
        other = graph.array(node.inputs[1 - index])
        if other is None or other.size != 1 or other.item() != number:
            return False
        return _same_shape(node, index)

    return holds


_REPEATS: dict[str, Callable[[ir.Node, int], bool]] = {
    "Identity": _always,
    "Dropout": _inference_dropout,
    "Cast": _same_dtype,
    "Reshape": _same_order,
    "Expand": _same_shape,
    "Flatten": _same_order,
    "Transpose": _identity_permutation,
    "Slice": _whole_slice,
    "Pad": _pads_nothing,
    "Concat": _only_one,
    "Add": _neutral(0),
    "Sub": _neutral(0),
    "Mul": _neutral(1),
    "Div": _neutral(1),
}

settle_castlike: Rule[ir.Node] = Rule(
    "settle_castlike", frozenset({"CastLike"}), check_castlike, settle
)
remove_noop: Rule[Repeat] = Rule("remove_noop", frozenset(_REPEATS), check_noop, skip)
remove_dead: Rule[ir.Node] = Rule("remove_dead", frozenset(), check_dead, drop, backwards=True)
