"""Functions of one number that are written in several operators: which one it is, however it is
written.

    x / (1 + exp(−1.702 x))  =  x · σ(1.702 x)         ½ x (1 + erf(x / √2))  =  gelu(x)

The nodes between a value and a single value before it, all elementwise and with scalar constants
only, are a function f: ℝ → ℝ. It is evaluated in float64 on a grid over all numbers of FP32, and so
are the functions that have an operator. Between the bends of max, min and comparisons, which are
found exactly, f is analytic; two such compositions of a few operators that agree at hundreds of
points are one function. They agree where they differ by no more than the rounding of f itself: so
max(x, 10⁻⁶) is no Relu, though 10⁻⁶ is small. Where f overflows in float64 (exp(x) / (1 + exp(x))
beyond 709) the operator is right, and f is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import erf, erfc, isfinite, log, pi, sqrt
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from optkit.craft.fusion.pattern import scalar

_MOST = 32  # nodes of a function
_CORE = 8.0  # the function must be finite here; beyond, its parts may overflow
_CONSTANT = 3e-6  # relative error of a constant that a user has rounded to six digits
_ROUNDING = 2.0**-22  # of the result of a node in FP32, with a few units for exp, erf and tanh
_TOLERANCE = 1e-4
"""A function that differs by more is another one, whatever its rounding."""

Numbers = NDArray[np.float64]
Attributes = dict[str, Any]

_erf: Callable[[Numbers], Numbers] = np.vectorize(erf, otypes=[np.float64])
_erfc: Callable[[Numbers], Numbers] = np.vectorize(erfc, otypes=[np.float64])


def _sigmoid(x: Numbers) -> Numbers:
    found: Numbers = np.reciprocal(1 + np.exp(-x))
    return found


def _where(node: ir.Node, holds: Numbers, a: Numbers, b: Numbers) -> Numbers:
    return np.where(holds, a, b)


def _clip(node: ir.Node, x: Numbers, *ends: Numbers) -> Numbers:
    for end, cut in zip(ends, (np.maximum, np.minimum), strict=False):
        x = x if end is None else cut(x, end)
    return x


ELEMENTWISE: Mapping[str, Callable[..., Numbers]] = {
    "Add": lambda node, a, b: a + b,
    "Sub": lambda node, a, b: a - b,
    "Mul": lambda node, a, b: a * b,
    "Div": lambda node, a, b: a / b,
    "Pow": lambda node, a, b: np.power(a, b),
    "Max": lambda node, *each: np.maximum.reduce(np.broadcast_arrays(*each)),
    "Min": lambda node, *each: np.minimum.reduce(np.broadcast_arrays(*each)),
    "Less": lambda node, a, b: a < b,
    "LessOrEqual": lambda node, a, b: a <= b,
    "Greater": lambda node, a, b: a > b,
    "GreaterOrEqual": lambda node, a, b: a >= b,
    "Where": _where,
    "Clip": _clip,
    "Abs": lambda node, x: np.abs(x),
    "Erf": lambda node, x: _erf(x),
    "Exp": lambda node, x: np.exp(x),
    "Log": lambda node, x: np.log(x),
    "Neg": lambda node, x: -x,
    "Reciprocal": lambda node, x: 1 / x,
    "Relu": lambda node, x: np.maximum(x, 0),
    "Sigmoid": lambda node, x: _sigmoid(x),
    "Softplus": lambda node, x: np.logaddexp(0, x),
    "Sqrt": lambda node, x: np.sqrt(x),
    "Tanh": lambda node, x: np.tanh(x),
}


_BENDING = frozenset(
    {"Abs", "Clip", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Relu"}
)
_STRAIGHT = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Clip", "Max", "Min", "Relu"})
"""Operators with a piecewise linear result, if their operands are so (of Mul and Div, if only one
operand is no constant)."""


@dataclass(frozen=True)
class Written:
    """The value of `last`, a function of `source` that `nodes` compute, the last first."""

    last: ir.Node
    source: ir.Value
    nodes: tuple[ir.Node, ...]

    def __call__(self, x: Numbers, moved: ir.Value | None = None, factor: float = 1) -> Numbers:
        """The values at x. `moved`: a value inside whose numbers are multiplied by `factor`."""
        return np.broadcast_to(self._values(x, moved, factor)[self.last.outputs[0]], x.shape)

    def points(self, x: Numbers) -> Numbers | None:
        """These points, the bends of the function, and the middles between them all; None if a bend
        depends on something that is not piecewise linear."""
        straight = {self.source}
        for node in reversed(self.nodes):
            moving = [v for v in node.inputs if v is not None and scalar(v) is None]
            linear = straight.issuperset(moving)
            if node.op_type in _BENDING:
                if not linear:
                    return None
                x = np.unique(np.concatenate([x, *self._bends(node, np.unique(x))]))
            single = len(moving) == 1 or node.op_type not in ("Mul", "Div")
            divided = node.op_type == "Div" and node.inputs[1] in moving
            if linear and single and not divided and node.op_type in _STRAIGHT:
                straight.add(node.outputs[0])
        x = np.unique(x)
        return np.concatenate([x, (x[1:] + x[:-1]) / 2])

    def _bends(self, node: ir.Node, x: Numbers) -> Iterator[Numbers]:
        """Where the operands of a node meet, or its only one is zero."""
        known = self._values(x)
        given = [_number(value, known) for value in node.inputs]
        operands = [one for one in given if one is not None]
        if len(operands) == 1:
            operands.append(np.zeros(1))
        for one, other in combinations(operands, 2):
            apart = np.broadcast_to(one - other, x.shape)
            before, after = apart[:-1], apart[1:]
            at = np.flatnonzero(before * after < 0)
            yield x[at] + (x[at + 1] - x[at]) * before[at] / (before[at] - after[at])

    def rounding(self, x: Numbers) -> Numbers:
        """How far rounding may move the function, to first order: its changes where one constant or
        the result of one node is larger or smaller by its relative error. The constants of bends
        and powers count as exact."""
        errors = {node.outputs[0]: _ROUNDING for node in self.nodes}
        for node in self.nodes:
            if node.op_type not in _BENDING and node.op_type != "Pow":
                errors |= {
                    v: _CONSTANT for v in node.inputs if v is not None and scalar(v) is not None
                }
        exact, total = self(x), np.zeros(x.shape)
        with np.errstate(all="ignore"):
            for value, error in errors.items():
                moved = (self(x, value, 1 + sign * error) for sign in (1, -1))
                total += np.maximum(*(np.abs(one - exact) for one in moved))
        return total

    def _values(
        self, x: Numbers, moved: ir.Value | None = None, factor: float = 1
    ) -> dict[ir.Value, Numbers]:
        known: dict[ir.Value, Numbers] = {self.source: x}
        if moved is not None and (number := scalar(moved)) is not None:
            known[moved] = np.asarray(number * factor)
        with np.errstate(all="ignore"):
            for node in reversed(self.nodes):
                given = [_number(value, known) for value in node.inputs]
                result, numbers = node.outputs[0], ELEMENTWISE[node.op_type](node, *given)
                is_moved = result is moved and numbers.dtype.kind == "f"
                known[result] = numbers * factor if is_moved else numbers
        return known


@dataclass(frozen=True)
class Function:
    """An operator for a function of one number. `attributes`: those with which it may be the given
    function, or None; `least`: the number of nodes that it must replace."""

    op: str
    compute: Callable[[Numbers, Attributes], Numbers]
    attributes: Callable[[Written], Attributes | None] = lambda written: {}
    domain: str = ""
    least: int = 2


@dataclass(frozen=True)
class RecognizedFunction:
    """What `written` computes is this operator with these attributes."""

    written: Written
    function: Function
    attributes: Attributes


def recognized(node: ir.Node, functions: Sequence[Function]) -> RecognizedFunction | None:
    """The longest part of the graph that ends in `node` and is one of these functions; None if
    there is none, or if the operator would replace too few nodes."""
    found = None
    for written in _written(node):
        count = len(written.nodes)
        fitting = [function for function in functions if count >= function.least]
        if fitting and (fit := _fitting(written, fitting)) is not None:
            found = fit
    return found


def _written(node: ir.Node) -> Iterator[Written]:
    """The functions that end in `node`, each longer than the one before it."""
    result = node.outputs[0]
    waiting, taken = {result}, []
    for each in _before(node):
        value = each.outputs[0]
        if value not in waiting:
            continue
        waiting.remove(value)
        taken.append(each)
        waiting |= {v for v in each.inputs if v is not None and scalar(v) is None}
        if len(waiting) == 1:
            source = next(iter(waiting))
            if _same_rank(source, result):
                yield Written(node, source, tuple(taken))


def _before(node: ir.Node) -> list[ir.Node]:
    """The elementwise nodes from `node` backwards, each before the nodes that it reads."""
    seen: dict[ir.Node, None] = {}

    def visit(each: ir.Node | None) -> None:
        if each is None or each in seen or each.op_type not in ELEMENTWISE or each.domain != "":
            return
        if each.graph is not node.graph or len(open_) >= _MOST:
            return
        open_.add(each)
        for value in each.inputs:
            visit(value.producer() if value is not None else None)
        seen[each] = None

    open_: set[ir.Node] = set()
    visit(node)
    return list(reversed(seen))


def _number(value: ir.Value | None, known: Mapping[ir.Value, Numbers]) -> Numbers | None:
    if value is None or value in known:
        return None if value is None else known[value]
    return np.asarray(scalar(value))


def _same_rank(a: ir.Value, b: ir.Value) -> bool:
    return a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape)


@cache
def _grid() -> Numbers:
    fine = np.linspace(-_CORE, _CORE, 257) + 1e-3
    far = np.geomspace(100, np.finfo(np.float32).max, 38)
    return np.concatenate([fine, [0.0], np.linspace(-60, 60, 41), far, -far])


def _fitting(written: Written, functions: Sequence[Function]) -> RecognizedFunction | None:
    """The first of the functions that is the written one."""
    if (x := written.points(_grid())) is None:
        return None
    given = written(x)
    sound = np.isfinite(given)
    if given.dtype.kind != "f" or not sound[np.abs(x) <= _CORE].all():
        return None
    for function in functions:
        if (attributes := function.attributes(written)) is None:
            continue
        with np.errstate(all="ignore"):
            wanted = function.compute(x, attributes)
        apart = np.abs(given - wanted)[sound]
        close = apart <= _TOLERANCE * np.maximum(1, np.abs(wanted[sound]))
        if close.all() and (apart <= written.rounding(x)[sound]).all():
            return RecognizedFunction(written, function, attributes)
    return None


def _at(written: Written, x: float) -> float:
    return float(written(np.array([x]))[0])


def _logit(p: float) -> float | None:
    return log(p / (1 - p)) if 0 < p < 1 else None


def _slope(written: Written) -> Attributes | None:
    """α of x · σ(αx), from its value at 1."""
    slope = _logit(_at(written, 1.0))
    return None if slope is None or slope <= 0 else {"alpha": slope}


def _line(written: Written) -> Attributes | None:
    """α and β of max(0, min(1, αx + β)), from its values near 0."""
    low, middle, high = (_at(written, x) for x in (-1e-2, 0.0, 1e-2))
    slope = (high - low) / 2e-2
    return {"alpha": slope, "beta": middle} if isfinite(slope) and slope > 0 else None


def _negative_slope(written: Written) -> Attributes | None:
    slope = -_at(written, -1.0)
    return {"alpha": slope} if isfinite(slope) and 0 < slope < 1 else None


def _gelu(x: Numbers, _: Attributes) -> Numbers:
    y: Numbers = x / 2 * _erfc(x * -sqrt(0.5))  # 1 + erf, without its cancellation
    return y


def _gelu_tanh(x: Numbers, _: Attributes) -> Numbers:
    return x * _sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x**3))  # ½ (1 + tanh u) = σ(2u)


PLAIN = (
    Function("Relu", lambda x, _: np.maximum(x, 0), least=1),
    Function("Sigmoid", lambda x, _: _sigmoid(x)),
    Function("Tanh", lambda x, _: np.tanh(x)),
    Function("LeakyRelu", lambda x, p: np.where(x > 0, x, p["alpha"] * x), _negative_slope),
    Function("HardSigmoid", lambda x, p: np.clip(p["alpha"] * x + p["beta"], 0, 1), _line),
    Function("HardSwish", lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1), least=3),
)
"""Operators that every runtime has had for years."""

GATED = (
    Function("Gelu", _gelu),
    Function("Gelu", _gelu_tanh, lambda written: {"approximate": "tanh"}),
    Function("QuickGelu", lambda x, p: x * _sigmoid(p["alpha"] * x), _slope, "com.microsoft"),
)
"""Operators that ONNX Runtime computes in one pass; compilers for GPUs fuse their parts anyway."""
