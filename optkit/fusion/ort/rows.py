"""What a GroupQueryAttention does with its new rows on their way in, instead of nodes before it.

    GQA(rotary(q, cos, sin), rotary(k, cos, sin), v, …)  =  GQA(q, k, v, …, cos', sin', at)
    GQA(*Split(rows), …)                                 =  GQA(rows, None, None, …)

Its kernel looks angles up, in tables with a row for each position that the cache has room for. The
angles of the new rows, [B, S, D/2], are such a table if they are laid one under the other, row
b·S + s for token s of sample b, and `at` [B, S] counts up; zeros, which nobody reads, fill it up to
the T rows that the operator insists on. So no table is made for positions that nobody asked for,
and none ends. Three nodes less for each layer: in decode each costs what a small product does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.fusion.ort.write import MICROSOFT, constant, once
from optkit.fusion.pattern import dims, made_by, read_once
from optkit.fusion.rule import Declined, Rule, remove

_Q, _K, _V = range(3)
_TOTAL, _COS, _SIN, _AT, _INPUTS = 6, 7, 8, 9, 10


@dataclass(frozen=True)
class Turned:
    """Queries and keys of the attention `node` are turned by the angles `cos`, `sin` [B, S, D/2];
    `total`: T, int64 [1]."""

    node: ir.Node
    rotaries: tuple[ir.Node, ir.Node]
    cos: ir.Value
    sin: ir.Value
    total: ir.Value


@dataclass(frozen=True)
class Packed:
    """`split` parts rows into the queries, keys and values of the attention `node`."""

    node: ir.Node
    split: ir.Node


def check_turned(node: ir.Node) -> Turned | Declined | None:
    query, key = (made_by(node.inputs[at], "RotaryEmbedding") for at in (_Q, _K))
    if query is None or key is None or node.domain != MICROSOFT:
        return None
    cos, sin = query.inputs[1:3]
    width = dims(cos, 3)
    if key.inputs[1:3] != (cos, sin) or cos is None or sin is None or width is None:
        return Declined("queries and keys are not turned by the same angles, one row per token")
    if any(each.attributes.keys() != {"num_heads"} for each in (query, key)):
        return Declined("its rotary embedding turns a part of each head, or interleaves")
    if not all(read_once(each.outputs[0]) for each in (query, key)):
        return Declined("what is turned is also used elsewhere")
    counted = made_by(node.inputs[_TOTAL], "Cast")
    total = counted.inputs[0] if counted is not None else None
    return None if total is None else Turned(node, (query, key), cos, sin, total)


def turn_inside(match: Turned) -> str:
    node, owner = match.node, match.node.graph
    assert owner is not None and match.cos.shape is not None
    for at, rotary in enumerate(match.rotaries):
        node.replace_input_with(at, rotary.inputs[0])
        remove(rotary)
    cos, sin = (_table(owner, angles, match.total) for angles in (match.cos, match.sin))
    node.resize_inputs(max(len(node.inputs), _INPUTS))
    for at, value in ((_COS, cos), (_SIN, sin), (_AT, _counted(owner, match.cos))):
        node.replace_input_with(at, value)
    node.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 1)
    return "it turns queries and keys itself"


def check_packed(node: ir.Node) -> Packed | Declined | None:
    split = made_by(node.inputs[_Q], "Split")
    if split is None or node.domain != MICROSOFT:
        return None
    rows = dims(split.inputs[0], 3)
    axis = split.attributes.get_int("axis", 0)
    if rows is None or axis not in (-1, 2) or list(split.outputs) != list(node.inputs[: _V + 1]):
        return Declined("its queries, keys and values do not lie side by side")
    if not all(read_once(each) for each in split.outputs):
        return Declined("its queries, keys or values are also used elsewhere")
    return Packed(node, split)


def take_packed(match: Packed) -> str:
    node, split = match.node, match.split
    node.replace_input_with(_Q, split.inputs[0])
    for at in (_K, _V):
        node.replace_input_with(at, None)
    remove(split)
    return "it takes queries, keys and values side by side"


def _table(owner: ir.Graph, angles: ir.Value, total: ir.Value) -> ir.Value:
    """[B·S + T, D/2]; the layers share it."""
    assert angles.shape is not None
    width = angles.shape[2]
    flat = constant(owner, f"rows.of_{width}", np.array([-1, width], np.int64))
    none = constant(owner, "rows.none", np.zeros(1, np.int64))
    under = once(owner, f"{angles.name}.flat", "Reshape", [angles, flat])
    room = once(owner, "rows.room", "Concat", [none, none, total, none], {"axis": 0})
    return once(owner, f"{angles.name}.table", "Pad", [under, room])


def _counted(owner: ir.Graph, angles: ir.Value) -> ir.Value:
    """int64 [B, S]: 0, 1, 2, … row by row."""
    first, step = (constant(owner, f"rows.{n}", np.array(n, np.int64)) for n in (0, 1))
    shape = once(owner, f"{angles.name}.tokens", "Shape", [angles], {"end": 2})
    count = once(owner, f"{angles.name}.count", "ReduceProd", [shape], {"keepdims": 0})
    numbers = once(owner, f"{angles.name}.numbers", "Range", [first, count, step])
    return once(owner, f"{angles.name}.at", "Reshape", [numbers, shape])


turned: Rule[Turned] = Rule("turned", frozenset({"GroupQueryAttention"}), check_turned, turn_inside)
packed: Rule[Packed] = Rule("packed", frozenset({"GroupQueryAttention"}), check_packed, take_packed)
