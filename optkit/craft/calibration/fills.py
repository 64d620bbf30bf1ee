"""Constants that a graph writes where there is no data: the fills of attention masks.

    Where(mask, x, -inf)        x + (1 - mask) * -3.4e38        x + Where(mask, 0, -1e4)

Such a constant, or a sum of two, is not an activation. A range with it would have one code for all
data (other tools compute scales of 1e36). So constants of large magnitude are followed through the
graph to the observed values, and the observers ignore the elements that equal them. The search ends
at operators that combine all of their input (Softmax, MatMul, sums): a fill that changes their
result changes the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from optkit.ground import graph

LEAST = 1e4
"""The least magnitude of a constant that counts as a fill."""

_SURELY = 1e30  # only masks are multiplied by constants as large as this
_MOST = 8  # the largest number of different fills of one constant or value; more of them are data
_LAYOUT = frozenset(
    {"Reshape", "Transpose", "Expand", "Unsqueeze", "Squeeze", "Flatten", "Slice", "Gather",
     "Split", "Concat", "Identity", "Cast", "Tile", "Pad", "GatherND", "GatherElements", "Where",
     "Max", "Min", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "TopK", "DepthToSpace",
     "SpaceToDepth", "ScatterND", "ScatterElements", "Clip", "Relu"}
)  # fmt: skip
_DATA_INPUTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"Where": (1, 2), "Concat": (), "Max": (), "Min": (), "Pad": (0, 2), "ScatterND": (0, 2),
     "ScatterElements": (0, 2)}
)  # fmt: skip  # operators whose input 0 is not all of the data; (): every input is


@dataclass(frozen=True)
class Fills:
    """The elements of a value that are not data: those equal to one of `values`, those at or beyond
    `low` or `high` (a fill to which data was added), and, if `infinite`, ±inf."""

    values: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    infinite: bool = False

    def __bool__(self) -> bool:
        return bool(self.values) or self.infinite or (self.low, self.high) != (None, None)

    def match(self, x: np.ndarray) -> np.ndarray:
        """bool, in the shape of x: True for elements that are not data."""
        filled = np.isinf(x) if self.infinite else np.zeros(x.shape, bool)
        for value in self.values:
            filled |= x == np.float32(value)
        if self.low is not None:
            filled |= x <= np.float32(self.low)
        if self.high is not None:
            filled |= x >= np.float32(self.high)
        return filled


NO_FILLS = Fills()


class _Fill(NamedTuple):
    """A constant on its way through the graph. `shifted`: whether data was added to it."""

    value: float
    shifted: bool = False


_Trail = frozenset[_Fill]


def fills(model: ir.Model, names: Iterable[str]) -> dict[str, Fills]:
    """The fills that can reach each of these values; values without fills are not in the result."""
    trails: dict[ir.Value, _Trail] = {}
    flags: set[ir.Value] = set()
    for node in model.graph:
        continued = _through(node, trails, flags)
        for output in node.outputs:
            if continued:
                trails[output] = continued
        if _is_flag(node, flags):
            flags.update(node.outputs)
    wanted = set(names)
    return {
        str(value.name): _summary(trail) for value, trail in trails.items() if value.name in wanted
    }


def _through(node: ir.Node, trails: Mapping[ir.Value, _Trail], flags: set[ir.Value]) -> _Trail:
    """The fills in the output of a node."""

    def of(value: ir.Value | None) -> _Trail:
        return frozenset() if value is None else trails.get(value) or _constant_fills(value)

    if node.op_type == "ConstantOfShape":
        return _large(_attribute_value(node))
    if node.op_type in _LAYOUT:
        chosen = _DATA_INPUTS.get(node.op_type, (0,)) or range(len(node.inputs))
        inputs = [node.inputs[i] for i in chosen if i < len(node.inputs)]
        return _bounded(frozenset().union(*map(of, inputs)))
    compute = _ARITHMETIC.get(node.op_type)
    if compute is None or any(value is None for value in node.inputs):
        return frozenset()
    operands = [(value, of(value)) for value in node.inputs if value is not None]
    return _bounded(compute(operands, flags))


_Operands = list[tuple[ir.Value, _Trail]]


def _add(operands: _Operands, flags: set[ir.Value], sign: float = 1.0) -> _Trail:
    (a, fills_a), (b, fills_b) = operands
    fills_b = frozenset(_Fill(sign * f.value, f.shifted) for f in fills_b)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = {
            _Fill(float(np.float32(f.value) + np.float32(g.value)), f.shifted or g.shifted)
            for f in fills_a
            for g in fills_b
        }
    alone = {_beside(f, b) for f in fills_a} | {_beside(f, a) for f in fills_b}
    return frozenset(f for f in sums | alone if not np.isnan(f.value))


def _beside(fill: _Fill, other: ir.Value) -> _Fill:
    """A fill plus another value: the same fill if zeros are added, otherwise a shifted one."""
    numbers = graph.array(other)
    plain = numbers is not None and not np.where(np.abs(numbers) >= LEAST, 0, numbers).any()
    return _Fill(fill.value, fill.shifted or not plain)


def _sub(operands: _Operands, flags: set[ir.Value]) -> _Trail:
    return _add(operands, flags, -1.0)


def _mul(operands: _Operands, flags: set[ir.Value]) -> _Trail:
    """fill × 0 or 1 is a fill, fill × constant a scaled one; a large constant × data is data."""
    results: set[_Fill] = set()
    for (_, fills_here), (other, _) in (operands, operands[::-1]):
        if not fills_here:
            continue
        numbers = graph.array(other)
        if numbers is not None and numbers.size == 1:
            results |= _times(fills_here, float(numbers.reshape(())))
        elif numbers is None:
            results |= {f for f in fills_here if other in flags or abs(f.value) >= _SURELY}
    return frozenset(results)


def _div(operands: _Operands, flags: set[ir.Value]) -> _Trail:
    (_, fills_here), (other, _) = operands
    numbers = graph.array(other)
    if numbers is None or numbers.size != 1 or not numbers.any():
        return frozenset()
    return _times(fills_here, 1.0 / float(numbers.reshape(())))


def _neg(operands: _Operands, flags: set[ir.Value]) -> _Trail:
    return _times(operands[0][1], -1.0)


def _times(trail: _Trail, factor: float) -> _Trail:
    with np.errstate(over="ignore"):
        scaled = {_Fill(float(np.float32(f.value * factor)), f.shifted) for f in trail}
    return frozenset(f for f in scaled if abs(f.value) >= LEAST)


_ARITHMETIC: Mapping[str, Callable[[_Operands, set[ir.Value]], _Trail]] = MappingProxyType(
    {"Add": _add, "Sub": _sub, "Mul": _mul, "Div": _div, "Neg": _neg}
)
_BOOLEAN = frozenset(
    {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor",
     "IsNaN", "IsInf"}
)  # fmt: skip
_KEEPS_FLAGS = frozenset(
    {"Cast", "Reshape", "Transpose", "Expand", "Unsqueeze", "Squeeze", "Slice", "Gather",
     "Identity", "Tile", "Concat", "Flatten", "Mul"}
)  # fmt: skip


def _is_flag(node: ir.Node, flags: set[ir.Value]) -> bool:
    """Whether the output of a node consists of zeros and ones: comparisons, 1 - flag, and integers
    that were cast to floats (a mask that is an input)."""
    if node.op_type in _BOOLEAN:
        return True

    def flag(value: ir.Value | None) -> bool:
        if value is None:
            return False
        whole = value.dtype is not None and (
            value.dtype.is_integer() or value.dtype == ir.DataType.BOOL
        )
        return value in flags or (whole and node.op_type == "Cast" and not graph.is_constant(value))

    if node.op_type == "Sub":
        numbers = graph.array(node.inputs[0])
        return numbers is not None and bool((numbers == 1).all()) and flag(node.inputs[1])
    data = node.inputs if node.op_type in ("Mul", "Concat") else node.inputs[:1]
    return node.op_type in _KEEPS_FLAGS and all(map(flag, data))


def _constant_fills(value: ir.Value) -> _Trail:
    if value.dtype is None or not value.dtype.is_floating_point():
        return frozenset()
    numbers = graph.array(value)
    return frozenset() if numbers is None or numbers.dtype.itemsize < 2 else _large(numbers)


def _large(numbers: np.ndarray | None) -> _Trail:
    """The fills among the numbers of a constant: none if there are many large numbers, as in
    data."""
    if numbers is None or not numbers.size:
        return frozenset()
    if numbers.min() > -LEAST and numbers.max() < LEAST:  # for weights: no copy of them is made
        return frozenset()
    large = np.unique(numbers[np.abs(numbers) >= LEAST])
    few = large.size <= _MOST and (numbers.size <= _MOST or np.unique(numbers).size <= 2 * _MOST)
    return frozenset(_Fill(float(v)) for v in large if not np.isnan(v)) if few else frozenset()


def _attribute_value(node: ir.Node) -> np.ndarray | None:
    attribute = node.attributes.get("value")
    return None if attribute is None else attribute.as_tensor().numpy()


def _bounded(trail: _Trail) -> _Trail:
    """At most a few fills: those with the largest magnitudes (sums of sums would grow without
    limit)."""
    return frozenset(sorted(trail, key=lambda f: (-abs(f.value), f))[: 4 * _MOST])


def _summary(trail: _Trail) -> Fills:
    """Data that is added to a fill does not move it across half of its value."""
    exact = {f.value for f in trail if np.isfinite(f.value)}
    shifted = {f.value for f in trail if f.shifted and np.isfinite(f.value)}
    low, high = [v / 2 for v in shifted if v < 0], [v / 2 for v in shifted if v > 0]
    return Fills(
        tuple(sorted(exact)),
        max(low, default=None),
        min(high, default=None),
        any(np.isinf(f.value) for f in trail) or any(abs(v) > 1e38 for v in shifted),
    )
