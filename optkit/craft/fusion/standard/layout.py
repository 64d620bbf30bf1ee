"""Chains of nodes that only move or rename axes.

Transpose_q(Transpose_p(x)) = Transpose_{p∘q}(x) with (p∘q)[i] = p[q[i]].
Reshape_s(r(x)) = Reshape_s(x) for any r that keeps the order of elements, unless s copies
axes of its input (a 0 with allowzero = 0). If the chain ends in x's own shape it is x.
A Reshape whose result has one axis that is not static needs no computed shape: that axis is −1.
Reshape(Transpose(Reshape(x))) that folds the leading axes into one, swaps the last two and unfolds
again is the Transpose of x's last two axes (how attention's Kᵀ is exported).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.pattern import chain, made_by, permutation, read_once
from optkit.craft.fusion.rule import Decline, Rule, keeps_output, remove, replace
from optkit.craft.fusion.standard.noop import same_shape, unequal
from optkit.ground import graph

_ORDER_KEEPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class NodePair:
    """`second` reads `first`, which reads `source`."""

    first: ir.Node
    second: ir.Node
    source: ir.Value


def check_transposes(node: ir.Node) -> NodePair | None:
    pair = _pair(node, "Transpose")
    return pair if pair is not None and _only_reader(pair) else None


def merge_permutations(pair: NodePair) -> str:
    p, q = permutation(pair.first), permutation(pair.second)
    assert p is not None and q is not None  # the rank is known
    pair.second.replace_input_with(0, pair.source)
    pair.second.attributes.add(ir.AttrInt64s("perm", [p[i] for i in q]))
    return f"reads through {pair.first.name}"


def check_reshapes(node: ir.Node) -> NodePair | Decline | None:
    pair = _pair(node, *_ORDER_KEEPING)
    if pair is None:
        return None
    if same_shape(pair.source, node.outputs[0], unknown=1):
        return keeps_output(node.outputs[0], pair.source) or pair
    if node.op_type != "Reshape" or not _only_reader(pair):
        return None
    if node.attributes.get_int("allowzero", 0) == 0:
        target = graph.array(node.inputs[1])
        if target is None or not target.all():
            return Decline(f"its shape may copy an axis of {pair.first.name}")
    return pair


def merge(pair: NodePair) -> str:
    if same_shape(pair.source, pair.second.outputs[0], unknown=1):
        replace(pair.second.outputs[0], pair.source)
        remove(pair.second)
        return f"undoes {pair.first.name}"
    pair.second.replace_input_with(0, pair.source)
    return f"reads through {pair.first.name}"


def check_target(node: ir.Node) -> ir.Node | None:
    shape = node.outputs[0].shape
    if graph.is_constant(node.inputs[1]) or shape is None or 0 in shape.dims:
        return None
    return node if sum(not isinstance(dim, int) for dim in shape) <= 1 else None


def write_target(node: ir.Node) -> str:
    shape, owner = node.outputs[0].shape, graph.owner(node)
    assert shape is not None
    target = np.array([dim if isinstance(dim, int) else -1 for dim in shape], np.int64)
    node.replace_input_with(1, graph.new_constant(owner, f"{node.name}.shape", target))
    return f"its shape is {target.tolist()}"


def check_swap(node: ir.Node) -> NodePair | Decline | None:
    nodes = chain(node.inputs[0], "Transpose", "Reshape")
    if nodes is None or permutation(nodes[0]) != [0, 2, 1]:
        return None
    swap, fold = nodes
    source, folded, result = fold.inputs[0], fold.outputs[0], node.outputs[0]
    if source is None or any(v.shape is None for v in (source, folded, result)):
        return None
    before, middle, after = (list(v.shape or ()) for v in (source, folded, result))
    if len(middle) != 3 or unequal(middle[1:], before[-2:]) != 0:
        return None
    if unequal(after, [*before[:-2], *middle[:0:-1]]) not in (0, 1):
        return None
    pair = NodePair(swap, node, source)
    if not _only_reader(pair):
        return Decline(f"the result of {swap.name} is also used elsewhere")
    return pair


def swap_last_axes(pair: NodePair) -> str:
    swap, result = pair.first, pair.second.outputs[0]
    rank = len(pair.source.shape or ())
    swap.replace_input_with(0, pair.source)
    swap.attributes.add(ir.AttrInt64s("perm", [*range(rank - 2), rank - 1, rank - 2]))
    swap.outputs[0].shape = result.shape
    replace(result, swap.outputs[0])
    swap.outputs[0].name = result.name
    remove(pair.second)
    return f"{swap.name} swaps the last two axes by itself"


def _pair(node: ir.Node, *ops: str) -> NodePair | None:
    first = made_by(node.inputs[0], *ops)
    source = first.inputs[0] if first is not None else None
    if first is None or source is None or source.shape is None:
        return None
    return NodePair(first, node, source)


def _only_reader(pair: NodePair) -> bool:
    """Whether `second` is the only reader of `first`, so that `first` can be removed; otherwise
    nothing is gained."""
    return read_once(pair.first.outputs[0])


settle_reshape: Rule[ir.Node] = Rule(
    "settle_reshape", frozenset({"Reshape"}), check_target, write_target
)
merge_transposes: Rule[NodePair] = Rule(
    "merge_transposes", frozenset({"Transpose"}), check_transposes, merge_permutations
)
merge_reshapes: Rule[NodePair] = Rule(
    "merge_reshapes", frozenset(_ORDER_KEEPING), check_reshapes, merge
)
swap_axes: Rule[NodePair] = Rule("swap_axes", frozenset({"Reshape"}), check_swap, swap_last_axes)
