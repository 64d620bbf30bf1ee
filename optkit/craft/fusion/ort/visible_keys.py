"""What the mask of a cached attention says of keys and queries, as conditions.

    key ≤ query              hides later keys
    key > query − W          hides all but the last W keys: a sliding window

Both are counted from the first row of the cache: query i of S is row P + i. A length is a sum of
named axes.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from optkit.craft.fusion.pattern import ints, made_by, scalar
from optkit.ground import graph


def length_of(node: ir.Node) -> int | None:
    """The only axis whose length a Shape returns."""
    if node.op_type != "Shape" or node.domain != "":
        return None
    start, end = (node.attributes.get_int(name, 0) for name in ("start", "end"))
    return start if start >= 0 and end == start + 1 else None


def terms(dim: int | ir.SymbolicDim) -> Counter[str]:
    """A length as a sum of axes: axis → how often it occurs; numbers have the key ""."""
    if isinstance(dim, int):
        return Counter({"": dim} if dim else {})
    return Counter((dim.value or "?").split(" + "))


def conjuncts(condition: ir.Value | None) -> list[ir.Value]:
    """The operands of a condition that consists of Ands, without those that are constantly True."""
    node = made_by(condition, "And")
    if node is not None:
        return [each for side in node.inputs for each in conjuncts(side)]
    numbers = graph.array(condition)
    always = numbers is not None and bool(numbers.all())
    return [] if condition is None or always else [condition]


def hides_later(condition: ir.Value, past: int | ir.SymbolicDim) -> bool:
    """Whether the condition is key ≤ query."""
    sides = _ordered(condition, "LessOrEqual", "GreaterOrEqual")
    return sides is not None and _is_key(sides[0]) and _is_query(sides[1], past)


def window(condition: ir.Value, past: int | ir.SymbolicDim) -> int | None:
    """W if the condition is key > query − W, or key ≥ query − (W − 1)."""
    for strictly, orders in ((0, ("Less", "Greater")), (1, ("LessOrEqual", "GreaterOrEqual"))):
        sides = _ordered(condition, *orders)
        first = made_by(sides[0], "Sub") if sides is not None else None
        if sides is None or first is None or not _is_key(sides[1]):
            continue
        distance = scalar(first.inputs[1])
        if distance is not None and distance + strictly >= 1 and _is_query(first.inputs[0], past):
            return int(distance) + strictly
    return None


def _ordered(
    condition: ir.Value, less: str, greater: str
) -> tuple[ir.Value | None, ir.Value | None] | None:
    """The smaller and the larger side of a comparison."""
    node = made_by(condition, less, greater)
    if node is None:
        return None
    left, right = node.inputs
    return (left, right) if node.op_type == less else (right, left)


def _is_key(value: ir.Value | None) -> bool:
    return _counted(value) == (-1, Counter())


def _is_query(value: ir.Value | None, past: int | ir.SymbolicDim) -> bool:
    return _counted(value) == (-2, terms(past))


def _counted(value: ir.Value | None) -> tuple[int, Counter[str]] | None:
    """(axis from the right, first number) if `value` counts up by one along one axis."""
    shape = value.shape if value is not None else None
    if shape is None:
        return None
    long = [axis - len(shape) for axis, dim in enumerate(shape) if dim != 1]
    while (node := made_by(value, "Unsqueeze", "Cast")) is not None:
        value = node.inputs[0]
    first: Counter[str] | None = Counter()
    if (add := made_by(value, "Add")) is not None:
        ranges = [made_by(side, "Range") is not None for side in add.inputs]
        if sum(ranges) != 1:
            return None
        first, value = _number(add.inputs[ranges.index(False)]), add.inputs[ranges.index(True)]
    counting = made_by(value, "Range")
    if counting is None or scalar(counting.inputs[2]) != 1 or len(long) != 1:
        return None
    start = _number(counting.inputs[0])
    return None if first is None or start is None else (long[0], first + start)


def _number(value: ir.Value | None) -> Counter[str] | None:
    """A number that is computed from constants and lengths, in the form of `terms`."""
    known = ints(value)
    if known is not None:
        return terms(known[0]) if len(known) == 1 and known[0] >= 0 else None
    node = made_by(value, "Shape", "Squeeze", "Cast", "Add", "Identity")
    if node is None:
        return None
    if node.op_type == "Add":
        left, right = map(_number, node.inputs)
        return None if left is None or right is None else left + right
    source, axis = node.inputs[0], length_of(node)
    if node.op_type != "Shape":
        return _number(source)
    shape = source.shape if source is not None else None
    return terms(shape[axis]) if shape is not None and axis is not None else None
