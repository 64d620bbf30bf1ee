"""Masks of an attention: the nodes that an exporter writes per query and key, in as few steps as
possible.

    GatherND(m, [[i, j] for i in 0..B-1 for j in columns]) = Gather(m, columns), in separate rows
    softmax(scores + 0) = softmax(scores)
    Where(m[b, key] and true, 0, low)                      = a mask per key: [B, T] integers

The exporter writes m[b, key] of a padding mask as a lookup of every pair of indices: eight nodes
and [B, T, 2] integers. `guard.interval` shows which conditions are always true.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.write import constant, put
from optkit.craft.fusion.pattern import (
    Number,
    Op,
    Var,
    dims,
    first_match,
    ints,
    known_equal,
    made_by,
    scalar,
)
from optkit.craft.fusion.rule import Decline, Rule
from optkit.craft.fusion.standard.guard import interval
from optkit.ground import graph

HIDDEN = np.float32(-3.4e38)
"""ONNX Runtime's Attention treats the lowest float in a mask as "no key", and returns zeros for a
row without keys. The graph returns the mean of V. A slightly larger number hides a key as well."""


_HIDING = Op("Where", Var("condition"), Number(0.0), Number("low"))
_COUNTING = Op("Range", Number(0.0), Var("length"), Number(1.0))


@dataclass(frozen=True)
class MaskColumns:
    """`node` computes source[:, columns] as [B, 1, 1, T]; no columns: all of them."""

    node: ir.Node
    source: ir.Value
    columns: ir.Value | None


@dataclass(frozen=True)
class Keys:
    """`present` [B, T], bool or int32, marks the existing keys; `low` is added to the scores of the
    others."""

    present: ir.Value
    low: float


def check_grid(node: ir.Node) -> MaskColumns | Decline | None:
    """A lookup of all pairs of a row and a column of a matrix."""
    source, pairs = node.inputs[0], made_by(node.inputs[1], "Concat")
    shape, result = dims(source, 2), dims(node.outputs[0], 4)
    if source is None or pairs is None or shape is None or result is None:
        return None
    if len(pairs.inputs) != 2 or node.attributes.get_int("batch_dims", 0) != 0:
        return None
    rows, columns = _line(pairs.inputs[0], 0), _line(pairs.inputs[1], 3)
    if rows is None or columns is None:
        return None
    if not (_counts(rows) and known_equal(_length(rows), shape[0])):
        return Decline("it is not known to look up every row once")
    if _counts(columns) and known_equal(_length(columns), shape[1]):
        return MaskColumns(node, source, None)
    if dims(columns, 1) is None:
        return Decline("its columns are not known to be all")
    return MaskColumns(node, source, columns)


def look_up(match: MaskColumns) -> str:
    node, owner, source = match.node, graph.owner(match.node), match.source
    assert source.shape is not None
    if match.columns is not None:
        taken = ir.Value(name=f"{node.name}.columns", type=source.type)
        taken.shape = ir.Shape([source.shape[0], _length(match.columns)])
        inputs, name = [source, match.columns], f"{node.name}.gather"
        gather = ir.node("Gather", inputs, {"axis": 1}, outputs=[taken], name=name)
        owner.insert_before(node, gather)
        source = taken
    axes = constant(owner, "mask.axes", np.array([1, 2], np.int64))
    put(node, "Unsqueeze", [source, axes], node.outputs[0])
    return "its columns at once"


def hides_nothing(mask: ir.Value) -> bool:
    return interval(mask) == (np.float32(0), np.float32(0))


def keys(mask: ir.Value) -> Keys | None:
    """The content of a mask that hides some keys from all queries and all heads; None for another
    mask."""
    match = first_match(_HIDING, mask)
    present = _per_key(match["condition"]) if match is not None else None
    if match is None or present is None or not np.isfinite(match.numbers["low"]):
        return None
    return Keys(present, match.numbers["low"])


def is_above_lowest(mask: ir.Value) -> bool:
    """Whether no number of the mask means "no key" to ONNX Runtime's Attention."""
    numbers, bound = interval(mask), made_by(mask, "Max")
    if not isinstance(numbers, str):
        return bool(numbers[0] >= HIDDEN)
    limits = [scalar(value) for value in bound.inputs] if bound is not None else []
    return any(limit is not None and limit >= HIDDEN for limit in limits)


def above_lowest(mask: ir.Value, node: ir.Node) -> ir.Value:
    """max(mask, HIDDEN), or the mask if it is known to be above. Layers share the result."""
    owner = graph.owner(node)
    if is_above_lowest(mask):
        return mask
    name = f"{mask.name}.bounded"
    numbers = graph.array(mask)
    if numbers is not None:
        return constant(owner, name, np.maximum(numbers, HIDDEN))
    for use in [*mask.uses(), *(_choice(mask) or mask).uses()]:
        if use.node.name == name:
            return use.node.outputs[0]
    bounded = ir.Value(name=name, type=mask.type, shape=mask.shape)
    _insert(owner, mask, _bounded(mask, bounded, owner))
    return bounded


def as_integers(present: ir.Value, node: ir.Node) -> ir.Value:
    """[B, T] int32 of booleans, as ONNX Runtime's attentions read them. Layers share the result."""
    if present.dtype == ir.DataType.INT32:
        return present
    owner, name = graph.owner(node), f"{present.name}.keys"
    for use in present.uses():
        if use.node.name == name:
            return use.node.outputs[0]
    integers = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT32), shape=present.shape)
    cast = ir.node(
        "Cast", [present], {"to": ir.DataType.INT32.value}, outputs=[integers], name=name
    )
    _insert(owner, present, cast)
    return integers


def _bounded(mask: ir.Value, result: ir.Value, owner: ir.Graph) -> ir.Node:
    choice = made_by(mask, "Where")
    sides = [graph.array(value) for value in choice.inputs[1:]] if choice is not None else [None]
    if choice is not None and all(side is not None for side in sides):
        constants = [
            constant(owner, f"{value.name}.bounded", np.maximum(side, HIDDEN))
            for value, side in zip(choice.inputs[1:], sides, strict=True)
            if value is not None and side is not None
        ]
        return ir.node("Where", [choice.inputs[0], *constants], outputs=[result], name=result.name)
    bound = constant(owner, "attention.hidden", np.asarray(HIDDEN))
    return ir.node("Max", [mask, bound], outputs=[result], name=result.name)


def _choice(mask: ir.Value) -> ir.Value | None:
    """The condition of the Where that computes a mask."""
    choice = made_by(mask, "Where")
    return choice.inputs[0] if choice is not None else None


def _insert(owner: ir.Graph, behind: ir.Value, node: ir.Node) -> None:
    producer = behind.producer()
    if producer is None:
        owner.insert_before(owner[0], node)
    else:
        owner.insert_after(producer, node)


def _per_key(condition: ir.Value | None) -> ir.Value | None:
    """[B, T] booleans: whether `condition` [B, 1, S or 1, T] holds for a key, for every query."""
    node = made_by(condition, "And", "Unsqueeze", "Expand")
    if node is None:
        return None
    if node.op_type == "And":
        always = [interval(value) == (np.float32(1), np.float32(1)) for value in node.inputs]
        return _per_key(node.inputs[always.index(True) - 1]) if any(always) else None
    if node.op_type == "Expand":
        return _per_key(node.inputs[0])
    source = node.inputs[0]
    plain = dims(source, 2) is not None and ints(node.inputs[1]) == [1, 2]
    return source if plain else None


def _line(value: ir.Value | None, axis: int) -> ir.Value | None:
    """The one-dimensional or constant value that a grid [B, 1, 1, T, 1] of indices repeats along
    all axes but one."""
    last = made_by(value, "Unsqueeze")
    if last is None or ints(last.inputs[1]) not in ([-1], [4]):
        return None
    line = last.inputs[0]
    if (wide := made_by(line, "Expand")) is not None:
        line = wide.inputs[0]
    shape = dims(line, 4)
    if shape is None or any(dim != 1 for each, dim in enumerate(shape) if each != axis):
        return None
    while line is not None and (apart := made_by(line, "Unsqueeze")) is not None:
        line = apart.inputs[0]
    return line if dims(line, 1) is not None or graph.is_constant(line) else None


def _length(line: ir.Value) -> int | ir.SymbolicDim:
    numbers = graph.array(line)
    assert line.shape is not None
    return line.shape[0] if numbers is None else numbers.size


def _counts(line: ir.Value) -> bool:
    """Whether the value is 0, 1, 2, …"""
    numbers = graph.array(line)
    if numbers is not None:
        return bool(np.array_equal(numbers.reshape(-1), np.arange(numbers.size)))
    return first_match(_COUNTING, line) is not None


grid: Rule[MaskColumns] = Rule("mask_grid", frozenset({"GatherND"}), check_grid, look_up)
