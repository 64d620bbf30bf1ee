"""Sums over bags, without the matrix of zeros and ones.

    [begin ≤ places < end] · found  =  ScatterND(zeros, bag of each row, found, add)

torch's EmbeddingBag with offsets is exported as a product of [bags, entries] and [entries, width],
which TensorRT takes, and whose cost is that of the matrix. Here each row is added to its bag. The
bag of a row is the number of bags that begin at it or before it, minus one: `begin` is ascending,
as torch requires, and each bag ends where the next one begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.write import constant, length, once, put
from optkit.craft.fusion.pattern import Match, Number, Op, Var, cut_by, dims, first_match, made_by
from optkit.craft.fusion.rule import Decline, Rule
from optkit.ground import graph

_PLACES = Op("Unsqueeze", Op("Range", Number(0), Var("entries"), Number(1)), Number(0))
_INSIDE = Op(
    "Cast",
    Op(
        "And",
        Op("GreaterOrEqual", _PLACES, Op("Unsqueeze", Var("begin"), Number(1))),
        Op("Less", _PLACES, Op("Unsqueeze", Var("end"), Number(1))),
    ),
)


@dataclass(frozen=True)
class Bags:
    """`node` sums the rows `found` [entries, width] into bags that begin at `begin` [bags]."""

    node: ir.Node
    begin: ir.Value
    found: ir.Value


def check(node: ir.Node) -> Bags | Decline | None:
    inside, found = node.inputs
    match = first_match(_INSIDE, inside)
    if match is None or inside is None or found is None:
        return None
    if not _ends_where_the_next_begins(match):
        return Decline("its bags may overlap")
    if dims(found, 2) is None or found.dtype != ir.DataType.FLOAT:
        return Decline("its rows are not a matrix in FP32")
    if match["begin"].dtype != ir.DataType.INT64:
        return Decline("its offsets are not int64")
    return Bags(node, match["begin"], found)


def _ends_where_the_next_begins(match: Match) -> bool:
    """Whether `end` is `begin` without its first offset, then the number of entries; or whether
    both are parts of the same offsets: all but the last, and all but the first."""
    begin, end = match["begin"], match["end"]
    following = made_by(end, "Concat")
    if following is not None:
        return _without_first(following.inputs[0]) is begin
    taken = made_by(begin, "Slice")
    cut = cut_by(taken) if taken is not None else None
    whole = cut is not None and (cut.start, cut.stop) == (0, -1)
    return whole and taken is not None and _without_first(end) is taken.inputs[0]


def _without_first(value: ir.Value | None) -> ir.Value | None:
    """x, from x[1:]."""
    node = made_by(value, "Slice")
    cut = cut_by(node) if node is not None else None
    if node is None or cut is None or cut.start != 1 or cut.stop < np.iinfo(np.int32).max:
        return None
    return node.inputs[0]


def scatter(match: Bags) -> str:
    node, begin, found, name = match.node, match.begin, match.found, match.node.name
    owner = graph.owner(node)

    def number(value: int) -> ir.Value:
        return constant(owner, f"bags.{value}", np.array([value], np.int64))

    def add(part: str, op: str, *inputs: ir.Value, **attributes: int | str) -> ir.Value:
        return once(owner, f"{name}.{part}", op, inputs, attributes)

    entries, bags, width = length(owner, found, 0), length(owner, begin, 0), length(owner, found, 1)
    zeros = add("begun", "Expand", number(0), add("places", "Add", entries, number(1)))
    ones = add("ones", "Expand", number(1), bags)
    marks = add("marks", "ScatterElements", zeros, begin, ones, reduction="add")
    axis = constant(owner, "bags.axis", np.array(0, np.int64))
    begun = add("count", "CumSum", marks, axis)
    of_rows = add("rows", "Slice", begun, number(0), entries, number(0))
    of_row = add("bag", "Sub", of_rows, number(1))
    at = add("at", "Unsqueeze", of_row, number(1))
    none = constant(owner, "bags.none", np.zeros(1, np.float32))
    empty = add("empty", "Expand", none, add("shape", "Concat", bags, width, axis=0))
    put(node, "ScatterND", [empty, at, found], node.outputs[0], attributes={"reduction": "add"})
    return "each row is added to its bag"


bags: Rule[Bags] = Rule("bags", frozenset({"MatMul"}), check, scatter)
