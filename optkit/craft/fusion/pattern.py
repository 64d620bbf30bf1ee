"""Patterns of nodes, and other properties of values that rules read.

A pattern describes how a value is computed, as a tree of operators:

    half = Op("Mul", Var("x"), Op("Sigmoid", Var("x")))        x · σ(x), the operands in any order
    for match in half.matches(node.outputs[0]): match["x"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import onnx_ir as ir

from optkit.ground import graph

_COMMUTATIVE = ("Add", "Mul")


@dataclass(frozen=True)
class Match:
    """The values of the names in a pattern."""

    values: Mapping[str, ir.Value] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> ir.Value:
        return self.values[name]

    def bind(self, name: str, value: ir.Value) -> Match:
        return replace(self, values={**self.values, name: value})

    def count(self, name: str, number: float) -> Match:
        return replace(self, numbers={**self.numbers, name: number})


class Pattern(Protocol):
    def matches(self, value: ir.Value | None, match: Match = Match()) -> Iterator[Match]:
        """Every way in which `value` matches the pattern, given the values of some names."""
        ...


@dataclass(frozen=True)
class Var:
    """Any value; the same value wherever the name is repeated."""

    name: str

    def matches(self, value: ir.Value | None, match: Match = Match()) -> Iterator[Match]:
        if value is not None and match.values.get(self.name, value) is value:
            yield match.bind(self.name, value)


@dataclass(frozen=True)
class Number:
    """A constant with a single number: this number, or any number under a name."""

    number: float | str

    def matches(self, value: ir.Value | None, match: Match = Match()) -> Iterator[Match]:
        number = scalar(value)
        if number is not None and isinstance(self.number, str):
            yield match.count(self.number, number)
        elif number is not None and number == self.number:
            yield match


@dataclass(frozen=True)
class ScaledBy:
    """s · x by constants: s under the name `factor`, 1 where nothing scales x."""

    source: Pattern
    factor: str

    def matches(self, value: ir.Value | None, match: Match = Match()) -> Iterator[Match]:
        until = match.values.get(self.source.name) if isinstance(self.source, Var) else None
        source, factor = scaled(value, until=until)
        yield from self.source.matches(source, match.count(self.factor, factor))


@dataclass(frozen=True)
class Either:
    """The first pattern, or another."""

    patterns: tuple[Pattern, ...]

    def matches(self, value: ir.Value | None, match: Match = Match()) -> Iterator[Match]:
        for pattern in self.patterns:
            yield from pattern.matches(value, match)


class Op:
    """The result of an operator whose first inputs match these patterns; those of Add and Mul in
    any order. `result`: its name in the match; `where`: a further condition on the node."""

    def __init__(
        self,
        op: str,
        *inputs: Pattern,
        result: str | None = None,
        where: Callable[[ir.Node], bool] = lambda node: True,
    ) -> None:
        self._op, self._inputs, self._result, self._where = op, inputs, result, where

    def matches(self, value: ir.Value | None, match: Match = Match()) -> Iterator[Match]:
        node = made_by(value, self._op)
        if value is None or node is None or len(node.inputs) < len(self._inputs):
            return
        if self._where(node):
            match = match if self._result is None else match.bind(self._result, value)
            yield from self._inputs_match(list(node.inputs), match)
            if self._op in _COMMUTATIVE:
                yield from self._inputs_match([node.inputs[1], node.inputs[0]], match)

    def _inputs_match(self, values: list[ir.Value | None], match: Match) -> Iterator[Match]:
        matches = [match]
        for pattern, value in zip(self._inputs, values, strict=False):
            matches = [after for before in matches for after in pattern.matches(value, before)]
        yield from matches


def first_match(pattern: Pattern, value: ir.Value | None, known: Match = Match()) -> Match | None:
    """The first way in which `value` matches the pattern, or None."""
    return next(pattern.matches(value, known), None)


class SliceRange(NamedTuple):
    """The range that a Slice takes along one axis, in steps of one, with the ends in the graph's
    notation."""

    axis: int
    start: int
    stop: int

    def within(self, size: int) -> tuple[int, int]:
        """[start, stop) of an axis of this size."""
        start, stop, _ = slice(self.start, self.stop).indices(size)
        return start, stop


def cut_by(node: ir.Node) -> SliceRange | None:
    """The cut of a Slice; None for another operator, several axes, steps, or ends that are
    computed."""
    if node.op_type != "Slice" or node.domain != "" or len(node.inputs) < 4:
        return None
    starts, ends, axes = (ints(value) for value in node.inputs[1:4])
    steps = ints(node.inputs[4]) if len(node.inputs) > 4 else [1]
    if starts is None or ends is None or axes is None or len(axes) != 1 or steps != [1]:
        return None
    return SliceRange(axes[0], starts[0], ends[0])


def made_by(value: ir.Value | None, *ops: str, domain: str = "") -> ir.Node | None:
    """The node that computes `value`, if it is one of these operators."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in ops and node.domain == domain else None


def chain(value: ir.Value | None, *ops: str) -> list[ir.Node] | None:
    """The nodes that compute `value` in a chain, the last first, each from input 0 of the one
    before it, if they are these operators: chain(v, "Reshape", "Transpose")."""
    nodes: list[ir.Node] = []
    for op in ops:
        node = made_by(value, op)
        if node is None or not node.inputs:
            return None
        nodes.append(node)
        value = node.inputs[0]
    return nodes


def sole_readers(value: ir.Value, *ops: str) -> list[ir.Node] | None:
    """The nodes that are the only readers of `value` and of each other's first result, if they are
    these operators."""
    nodes: list[ir.Node] = []
    for op in ops:
        node = reader(value, op)
        if node is None:
            return None
        nodes.append(node)
        value = node.outputs[0]
    return nodes


def read_once(value: ir.Value) -> bool:
    """Whether one node reads the value, at one input, and it is not a graph output."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def reader(value: ir.Value, *ops: str) -> ir.Node | None:
    """The only node that reads `value`, if it is one of these operators."""
    if not read_once(value):
        return None
    node = next(iter(value.uses())).node
    return node if node.op_type in ops and node.domain == "" else None


def scalar(value: ir.Value | None) -> float | None:
    """The number of a constant with a single element."""
    numbers = graph.array(value)
    return float(numbers.item()) if numbers is not None and numbers.size == 1 else None


def scaled(
    value: ir.Value | None, *, until: ir.Value | None = None
) -> tuple[ir.Value | None, float]:
    """(x, s) if `value` is s · x; s is 1 if nothing scales it. The search stops at `until`."""
    node, scale = made_by(value, "Mul", "Div"), 1.0
    while node is not None and value is not until:
        index = 0 if node.op_type == "Div" or scalar(node.inputs[1]) is not None else 1
        source, factor = operands(node, index)
        number = scalar(factor)
        if number is None or (node.op_type == "Div" and number == 0):
            break
        scale = scale / number if node.op_type == "Div" else scale * number
        value, node = source, made_by(source, "Mul", "Div")
    return value, scale


def of_float_product(value: ir.Value | None) -> bool:
    """Whether a float32 MatMul with a constant weight computes the value. (A product of codes adds
    its bias itself.)"""
    product = made_by(value, "MatMul")
    if product is None or product.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    return graph.is_constant(product.inputs[1])


def biased_product(add: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """(product, bias) if an Add adds one constant per feature to a float product."""
    for product, bias in sides(add):
        numbers, shape = graph.array(bias), product.shape if product is not None else None
        if product is None or bias is None or numbers is None or shape is None:
            continue
        if of_float_product(product) and numbers.ndim == 1 and numbers.size == shape[-1]:
            return product, bias
    return None


def operands(node: ir.Node, index: int) -> tuple[ir.Value | None, ir.Value | None]:
    """Input `index` of a node with two inputs, and the other one."""
    return node.inputs[index], node.inputs[1 - index]


def sides(node: ir.Node | None) -> list[tuple[ir.Value | None, ir.Value | None]]:
    """The two inputs of a node in both orders; nothing without a node."""
    return [] if node is None else [operands(node, 0), operands(node, 1)]


def permutation(node: ir.Node) -> list[int] | None:
    """The permutation of a Transpose; None if it depends on an unknown rank."""
    order = node.attributes.get("perm")
    if order is not None:
        return list(order.as_ints())
    source = node.inputs[0]
    rank = len(source.shape) if source is not None and source.shape is not None else None
    return None if rank is None else list(reversed(range(rank)))


def dims(value: ir.Value | None, rank: int) -> list[int | ir.SymbolicDim] | None:
    """The dimensions of a value of this rank; None for another or an unknown one."""
    if value is None or value.shape is None or len(value.shape) != rank:
        return None
    return list(value.shape.dims)


def ints(value: ir.Value | None) -> list[int] | None:
    """A constant of integers as a flat list."""
    numbers = graph.array(value)
    return None if numbers is None else [int(number) for number in numbers.reshape(-1)]


def known_equal(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    """Two dimensions are the same number, or the same named axis."""
    return a == b and a != ir.SymbolicDim(None)
