"""How rows of features become heads, and heads become rows: the axes of attention.

split   x [B, S, N·D] ─Reshape→ [B, S, N, D] ─Transpose(0, 2, 1, 3)→ [B, N, S, D]
join    [B, N, S, D] ─Transpose(0, 2, 1, 3)→ [B, S, N, D] ─Reshape→ [B, S, N·D]
packed  x [B, S, 3·N·D] ─Reshape→ [B, S, 3, N, D] ─Transpose(2, 0, 3, 1, 4)→ [i]
        = split(x[..., i·N·D : (i+1)·N·D])
repeat  [B, G, S, D] ─Unsqueeze(2), Expand, Reshape→ [B, G·R, S, D]      key head i // R
cache   past [B, G, P, D], [B, G, S, D] ─Concat(2)→ [B, G, P + S, D]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.write import constant, put
from optkit.craft.fusion.pattern import (
    chain,
    cut_by,
    dims,
    ints,
    known_equal,
    made_by,
    permutation,
    sole_readers,
)
from optkit.craft.fusion.rule import Decline, Rule
from optkit.ground import graph

SPLIT = [0, 2, 1, 3]


@dataclass(frozen=True)
class HeadRows:
    """`value` [B, S, heads · size] has the heads side by side."""

    value: ir.Value
    heads: int
    size: int


@dataclass(frozen=True)
class KeyValueCache:
    """Keys or values of earlier rows [B, G, P, D], and with the new ones [B, G, P + S, D]."""

    past: ir.Value
    present: ir.Value


@dataclass(frozen=True)
class PackedHeads:
    """`node` returns the heads `[start, stop)` of the features of `rows` [B, S, 3·N·D]."""

    node: ir.Node
    rows: ir.Value
    start: int
    stop: int
    heads: int


def split_from(value: ir.Value | None, order: list[int] | None = None) -> HeadRows | None:
    """The rows that were split into `value`. `order`: that of the Transpose, if it is not SPLIT."""
    nodes = chain(value, "Transpose", "Reshape")
    if nodes is None or permutation(nodes[0]) != (order or SPLIT):
        return None
    source, shape = nodes[1].inputs[0], dims(nodes[0].inputs[0], 4)
    size = _side_by_side(dims(source, 3), shape)
    if source is None or shape is None or size is None:
        return None
    return HeadRows(source, size[0], size[1])


def joined(value: ir.Value) -> tuple[ir.Value, list[ir.Node]] | None:
    """(the rows that are the only use of `value` [B, N, S, D], the nodes that compute them)."""
    nodes = sole_readers(value, "Transpose", "Reshape")
    if nodes is None or permutation(nodes[0]) != SPLIT:
        return None
    transpose, reshape = nodes
    size = _side_by_side(dims(reshape.outputs[0], 3), dims(transpose.outputs[0], 4))
    return None if size is None else (reshape.outputs[0], [reshape, transpose])


def _side_by_side(
    rows: list[int | ir.SymbolicDim] | None, heads: list[int | ir.SymbolicDim] | None
) -> tuple[int, int] | None:
    """(heads, size) if rows [B, S, N·D] hold heads [B, S, N, D] side by side."""
    if rows is None or heads is None:
        return None
    count, size = heads[2:]
    if not isinstance(count, int) or not isinstance(size, int) or rows[2] != count * size:
        return None
    return (count, size) if known_equal(rows[1], heads[1]) else None


def repeated_from(value: ir.Value | None) -> ir.Value | None:
    """The heads [B, G, S, D] that were repeated to `value` [B, G·R, S, D]."""
    nodes = chain(value, "Reshape", "Expand", "Unsqueeze")
    if nodes is None or ints(nodes[2].inputs[1]) != [2]:
        return None
    _, expand, unsqueeze = nodes
    source = unsqueeze.inputs[0]
    given, wide, result = dims(source, 4), dims(expand.outputs[0], 5), dims(value, 4)
    if given is None or wide is None or result is None:
        return None
    groups, repeats = wide[1:3]
    if not isinstance(groups, int) or not isinstance(repeats, int) or given[1] != groups:
        return None
    if result[1] != groups * repeats or result[3] != given[3] or wide[4] != given[3]:
        return None
    # the unknown axis follows from the other one
    kept = any(known_equal(given[axis], result[axis]) for axis in (0, 2))
    return source if kept and known_equal(given[2], wide[3]) else None


def continued(value: ir.Value | None) -> tuple[ir.Value, KeyValueCache] | None:
    """(the new heads [B, G, S, D], the cache before them) if `value` is their concatenation."""
    concat = made_by(value, "Concat")
    if value is None or concat is None or len(concat.inputs) != 2:
        return None
    if concat.attributes.get_int("axis", 0) not in (2, -2):
        return None
    past, new = concat.inputs
    before, after = dims(past, 4), dims(new, 4)
    if past is None or new is None or before is None or after is None:
        return None
    same = all(known_equal(before[axis], after[axis]) for axis in (0, 1, 3))
    return (new, KeyValueCache(past, value)) if same else None


def check_packed(node: ir.Node) -> PackedHeads | Decline | None:
    cut = made_by(node.inputs[0], "Slice") if node.op_type == "Squeeze" else node
    nodes = chain(cut.inputs[0], "Transpose", "Reshape") if cut is not None else None
    if cut is None or nodes is None or permutation(nodes[0]) != [2, 0, 3, 1, 4]:
        return None
    rows = nodes[1].inputs[0]
    before, apart = dims(rows, 3), dims(nodes[0].inputs[0], 5)
    return None if rows is None or not before or not apart else _packed(node, cut, rows, apart)


def _packed(
    node: ir.Node, cut: ir.Node, rows: ir.Value, apart: list[int | ir.SymbolicDim]
) -> PackedHeads | Decline:
    before = dims(rows, 3) or []
    index = _index(node, cut)
    sizes = [dim for dim in apart[2:] if isinstance(dim, int)]
    if index is None or len(sizes) < 3:
        return Decline("it takes more than one of the packed parts")
    if before[2] != prod(sizes) or not known_equal(before[1], apart[1]) or index >= sizes[0]:
        return Decline("what it takes is not known to be a range of features")
    width = sizes[1] * sizes[2]
    return PackedHeads(node, rows, index * width, (index + 1) * width, sizes[1])


def unpack(match: PackedHeads) -> str:
    node, owner = match.node, graph.owner(match.node)
    assert match.rows.shape is not None
    size = (match.stop - match.start) // match.heads
    batch, sequence, _ = match.rows.shape.dims
    name = str(node.name)
    ends = [
        constant(owner, f"axis_{number}", np.array([number], np.int64))
        for number in (match.start, match.stop, 2)
    ]
    target = constant(owner, f"{name}.heads", np.array([0, 0, match.heads, size], np.int64))
    rows, apart = ir.Value(name=f"{name}.rows"), ir.Value(name=f"{name}.apart")
    cut = ir.node("Slice", [match.rows, *ends], outputs=[rows], name=f"{name}.slice")
    reshape = ir.node("Reshape", [rows, target], outputs=[apart], name=f"{name}.reshape")
    rows.type = apart.type = match.rows.type
    rows.shape = ir.Shape([batch, sequence, match.stop - match.start])
    apart.shape = ir.Shape([batch, sequence, match.heads, size])
    owner.insert_before(node, [cut, reshape])
    put(node, "Transpose", [apart], node.outputs[0], attributes={"perm": SPLIT})
    return f"features {match.start} to {match.stop} of the packed rows"


def _index(squeeze: ir.Node, cut: ir.Node) -> int | None:
    """The single index along axis 0 that a Gather takes, or a Slice whose axis a Squeeze
    removes."""
    if cut.op_type == "Gather":
        index = graph.array(cut.inputs[1])
        at_front = cut.attributes.get_int("axis", 0) == 0
        position = int(index) if index is not None and index.ndim == 0 and at_front else -1
        return position if position >= 0 else None
    taken = cut_by(cut)
    dropped = ints(squeeze.inputs[1]) if len(squeeze.inputs) > 1 else None
    if taken is None or taken.axis != 0 or dropped != [0]:
        return None
    return taken.start if taken.start >= 0 and taken.stop == taken.start + 1 else None


unpack_heads: Rule[PackedHeads] = Rule(
    "unpack_heads", frozenset({"Squeeze", "Gather"}), check_packed, unpack
)
