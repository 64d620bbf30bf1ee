"""Rows that no node reads are not computed: a selection moves towards the inputs.

    f(x)[i] = f(x[i])        for every f that treats the rows along an axis independently

A classifier reads one token of its last layer, a generator the logits of the last position. The
selection moves towards the inputs through elementwise operators, norms and softmaxes along other
axes, products (rows of the left operand), Transpose, and Reshape of later axes. It stops where all
rows are needed: at the keys and values of the last attention. This is exact. In a ViT of 6 layers
it removes one eighth of the work; quantization then sees only the rows that are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.pattern import cut_by, ints, known_equal, permutation, read_once
from optkit.craft.fusion.rule import Rule, remove, replace
from optkit.ground import graph

_UNARY = frozenset(
    {
        *("Relu", "Gelu", "Sigmoid", "Tanh", "Erf", "Sqrt", "Exp", "Neg", "Abs", "Reciprocal"),
        *("Softplus", "HardSwish", "LeakyRelu", "Elu", "Cast", "Clip", "Identity"),
    }
)
_BROADCAST = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum", "ReduceMax"})
_COMPUTES = _UNARY | _BROADCAST | _NORMS | {"MatMul", "Softmax"}

Wanted = dict[int, int]
"""Input index → the axis of this input that contains the rows."""


@dataclass(frozen=True)
class SelectedRows:
    """The rows [start, end) along one axis, in the notation of Slice; `count` of them."""

    axis: int
    start: int
    end: int
    count: int


@dataclass(frozen=True)
class One:
    """`gather` takes one row and drops the axis."""

    gather: ir.Node
    row: SelectedRows


@dataclass(frozen=True)
class Early:
    """`slice` takes `rows` of the result of `producer`, which then needs only those rows of its
    inputs."""

    slice: ir.Node
    producer: ir.Node
    rows: SelectedRows
    wanted: Wanted


def check_one(node: ir.Node) -> One | None:
    """A Gather of one index, if it is the only reader of the result of an operator with rows."""
    source, index = node.inputs[0], graph.array(node.inputs[1])
    if source is None or source.shape is None or index is None or index.ndim or node.domain:
        return None
    producer = source.producer()
    if producer is None or producer.op_type not in _COMPUTES or not read_once(source):
        return None
    rank, start = len(source.shape), int(index)
    axis = node.attributes.get_int("axis", 0) % rank
    if _wanted(producer, axis) is None:
        return None
    end = start + 1 if start != -1 else np.iinfo(np.int64).max
    return One(node, SelectedRows(axis, start, int(end), 1))


def check(node: ir.Node) -> Early | None:
    rows, source = _rows(node), node.inputs[0]
    producer = source.producer() if source is not None else None
    if rows is None or source is None or producer is None or not read_once(source):
        return None
    result = node.outputs[0]
    if producer.graph is not node.graph or result.is_graph_output() or not result.uses():
        return None
    wanted = _wanted(producer, rows.axis)
    return None if wanted is None else Early(node, producer, rows, wanted)


def move(match: Early) -> str:
    """Move the selection past one operator, and then as far as possible."""
    steps, waiting = 0, [match.slice]
    while waiting:
        node = waiting.pop()
        found = check(node) if node.graph is not None else None
        if found is None:
            continue
        _move(found)
        steps += 1
        taken = [found.producer.inputs[index] for index in found.wanted]
        makers = [value.producer() if value is not None else None for value in taken]
        waiting += [maker for maker in makers if maker is not None and maker.op_type == "Slice"]
    return f"past {steps} operators"


def _move(match: Early) -> None:
    producer, rows = match.producer, match.rows
    for index, axis in match.wanted.items():
        value = producer.inputs[index]
        assert value is not None
        at = SelectedRows(axis, rows.start, rows.end, rows.count)
        producer.replace_input_with(index, _take(value, at, producer))
    if producer.op_type == "Reshape":
        _shorten(producer, rows)
    output, result = producer.outputs[0], match.slice.outputs[0]
    output.shape = result.shape
    replace(result, output)
    output.name = result.name
    remove(match.slice)


def split_one(match: One) -> str:
    node, source, owner = match.gather, match.gather.inputs[0], graph.owner(match.gather)
    assert source is not None
    taken = _take(source, match.row, node)
    axes = _constant(owner, f"select.{match.row.axis}", match.row.axis)
    result = node.outputs[0]
    squeeze = ir.node("Squeeze", [taken, axes], name=f"{node.name}.squeeze")
    squeeze.outputs[0].type, squeeze.outputs[0].shape = result.type, result.shape
    owner.insert_before(node, squeeze)
    replace(result, squeeze.outputs[0])
    squeeze.outputs[0].name = result.name
    remove(node)
    return "one row, then its axis dropped"


def _take(value: ir.Value, rows: SelectedRows, reader: ir.Node) -> ir.Value:
    """The rows of `value`. Readers of the same rows share them."""
    owner = graph.owner(reader)
    name = f"{value.name}.rows_{rows.axis}_{rows.start}_{rows.end}"
    for use in value.uses():
        if use.node.name == name:
            return use.node.outputs[0]
    numbers = (rows.start, rows.end, rows.axis)
    ends = [_constant(owner, f"select.{number}", number) for number in numbers]
    taken = ir.Value(name=name, type=value.type)
    if value.shape is not None:
        dims = list(value.shape.dims)
        dims[rows.axis] = rows.count
        taken.shape = ir.Shape(dims)
    node = ir.node("Slice", [value, *ends], outputs=[taken], name=name)
    producer = value.producer()
    if producer is not None and producer.graph is owner:
        owner.insert_after(producer, node)
    else:
        owner.insert_before(owner[0], node)
    return taken


def _constant(owner: ir.Graph, name: str, number: int) -> ir.Value:
    known = ir.convenience.create_value_mapping(owner)
    if ints(known.get(name)) == [number]:
        return known[name]
    return graph.new_constant(owner, name, np.array([number], np.int64))


def _rows(node: ir.Node) -> SelectedRows | None:
    """The rows that a Slice along one axis takes, if their number is known."""
    cut, shape = cut_by(node), node.outputs[0].shape
    if cut is None or shape is None:
        return None
    axis = cut.axis % len(shape)
    count = shape[axis]
    return SelectedRows(axis, cut.start, cut.stop, count) if isinstance(count, int) else None


def _wanted(producer: ir.Node, axis: int) -> Wanted | None:
    """The rows of the inputs that these rows of the result need; None if the rows depend on each
    other."""
    op, result = producer.op_type, producer.outputs[0]
    if result.shape is None or any(v.uses() or v.is_graph_output() for v in producer.outputs[1:]):
        return None
    if op == "MatMulIntegerToFloat":
        return {0: axis} if axis < len(result.shape) - 1 else None
    if producer.domain != "":
        return None
    if op in _UNARY:
        return {0: axis}
    if op in _BROADCAST:
        return _broadcast(producer, axis)
    rule = _RULES.get(op)
    return rule(producer, axis) if rule is not None else None


def _broadcast(node: ir.Node, axis: int) -> Wanted | None:
    result = node.outputs[0].shape
    assert result is not None
    wanted: Wanted = {}
    for index, value in enumerate(node.inputs):
        if value is None or value.shape is None:
            return None
        mine = axis - len(result) + len(value.shape)
        if mine < 0 or value.shape[mine] == 1:
            continue
        if not known_equal(value.shape[mine], result[axis]):
            return None
        wanted[index] = mine
    return wanted or None


def _norm(node: ir.Node, axis: int) -> Wanted | None:
    rank = len(node.outputs[0].shape or ())
    return {0: axis} if axis < node.attributes.get_int("axis", -1) % rank else None


def _softmax(node: ir.Node, axis: int) -> Wanted | None:
    rank = len(node.outputs[0].shape or ())
    return {0: axis} if axis != node.attributes.get_int("axis", -1) % rank else None


def _reduction(node: ir.Node, axis: int) -> Wanted | None:
    axes = ints(node.inputs[1]) if len(node.inputs) > 1 else None
    rank = len(node.outputs[0].shape or ())
    if axes is None or not node.attributes.get_int("keepdims", 1):
        return None
    return {0: axis} if axis not in [each % rank for each in axes] else None


def _product(node: ir.Node, axis: int) -> Wanted | None:
    """The rows of the left operand. Axes before them are allowed if the right operand is a
    matrix."""
    left, right = (value.shape if value is not None else None for value in node.inputs)
    result = node.outputs[0].shape
    if left is None or right is None or result is None or len(left) != len(result):
        return None
    if axis == len(result) - 2 or (axis < len(result) - 2 and len(right) == 2):
        return {0: axis}
    return None


def _transpose(node: ir.Node, axis: int) -> Wanted | None:
    order = permutation(node)
    return None if order is None else {0: order[axis]}


def _reshape(node: ir.Node, axis: int) -> Wanted | None:
    """Allowed if this axis and those before it do not change, and the target is a constant."""
    source, target = node.inputs[0], ints(node.inputs[1])
    if source is None or source.shape is None or target is None or len(source.shape) <= axis:
        return None
    if len(target) <= axis or (0 in target and bool(node.attributes.get_int("allowzero", 0))):
        return None
    dims = list(source.shape.dims)
    return {0: axis} if all(_stays(dims, target, each) for each in range(axis + 1)) else None


def _stays(dims: list[int | ir.SymbolicDim], target: list[int], axis: int) -> bool:
    """Whether a Reshape of `dims` to `target` does not change the length of this axis."""
    if target[axis] != -1:
        return target[axis] in (0, dims[axis])
    others = [dim for each, dim in enumerate(dims) if each != axis]
    wanted = [size for each, size in enumerate(target) if each != axis]
    known = [dim for dim in others if isinstance(dim, int)]
    return len(known) == len(others) and 0 not in wanted and prod(known) == prod(wanted)


def _shorten(reshape: ir.Node, rows: SelectedRows) -> None:
    """The target of a Reshape with fewer rows; a following axis of −1 stays −1."""
    target = ints(reshape.inputs[1])
    assert target is not None
    if target[rows.axis] > 0:
        target[rows.axis] = rows.count
        numbers = np.array(target, np.int64)
        shape = graph.new_constant(graph.owner(reshape), f"{reshape.name}.shape", numbers)
        reshape.replace_input_with(1, shape)


_RULES: dict[str, Callable[[ir.Node, int], Wanted | None]] = {
    **dict.fromkeys(_NORMS, _norm),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "Softmax": _softmax,
    "MatMul": _product,
    "Transpose": _transpose,
    "Reshape": _reshape,
}


select_one: Rule[One] = Rule("select_one", frozenset({"Gather"}), check_one, split_one)
select_early: Rule[Early] = Rule("select_early", frozenset({"Slice"}), check, move)
