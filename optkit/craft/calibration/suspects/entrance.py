"""Where an input enters the network, and which numbers the weights there expect.

    input ─(layout, constants)→ first product ─(+ bias, positions)→ … ─→ BatchNormalization

A batch norm contains the mean and the variance of its input in training (Ioffe and Szegedy,
arXiv:1502.03167). On data that is prepared in the same way, its input has the same mean and
variance. Constants that are added to the first product were trained together with it, so both have
similar magnitudes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.facts.tensors import Feed
from optkit.ground import graph

_LAYOUT = frozenset(
    {"Identity", "Cast", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Slice", "Pad",
     "Concat", "Split", "DepthToSpace", "SpaceToDepth", "Resize", "Expand"}
)  # fmt: skip
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
_BETWEEN = frozenset(  # operators allowed between a product and its batch norm
    {"Relu", "LeakyRelu", "PRelu", "Clip", "Elu", "Sigmoid", "Tanh", "HardSigmoid", "MaxPool",
     "AveragePool", "Add"}
) | _LAYOUT  # fmt: skip
_DEEP = 12  # the largest number of nodes that are followed
FLAT: Mapping[str, float] = {"Sigmoid": 4.0, "Tanh": 2.6}
"""Magnitude of the input of an activation beyond which its slope is less than 2 % of the
largest."""


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """The first batch norm behind an input: the value that it reads, and its statistics from
    training, float64 [C]."""

    name: str
    value: str
    mean: np.ndarray
    variance: np.ndarray


@dataclass(frozen=True, eq=False)
class Entrance:
    """`product`: the output of the first product with a constant weight, and its axis of channels;
    `constants`: root mean square of the constants that are added to it next (0: none);
    `activation`: the operator directly after that and the value it reads; `own`: constants of
    arithmetic before the product, as (operator, smallest, largest), in order."""

    product: tuple[str, int] | None = None
    constants: float = 0.0
    activation: tuple[str, str] | None = None
    batchnorm: BatchNorm | None = None
    own: tuple[tuple[str, float, float], ...] = ()

    def reach(self, low: float, high: float) -> tuple[float, float]:
        """The range that the first product reads, for this range of the input."""
        for op, least, most in self.own:
            with np.errstate(divide="ignore", invalid="ignore"):
                ends = [_OPERATE[op](a, b) for a in (low, high) for b in (least, most)]
            low, high = float(min(ends)), float(max(ends))
        return low, high


_OPERATE = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}


@dataclass(frozen=True, eq=False)
class ChannelMoments:
    """Mean and variance per channel, float64 [C], of a value over samples; `flat`: the share of
    elements beyond a limit."""

    mean: np.ndarray
    variance: np.ndarray
    flat: float


def entrances(model: ir.Model) -> dict[str, Entrance]:
    """The entrances by input, for inputs that reach a product or a batch norm through only layout
    operators and constants."""
    by_input = {}
    for value in model.graph.inputs:
        entrance = _entrance(value)
        if entrance is not None and value.name is not None:
            by_input[value.name] = entrance
    return by_input


def tables(model: ir.Model) -> dict[str, int]:
    """For each input of integers, the number of rows of the smallest constant table in which it is
    looked up."""
    by_input = {}
    for value in model.graph.inputs:
        rows = [
            node.inputs[0].shape[0]
            for node in _behind(value, frozenset({"Identity", "Cast", "Reshape", "Unsqueeze"}))
            if node.op_type == "Gather"
            and graph.is_constant(node.inputs[0])
            and node.inputs[0] is not None
            and node.inputs[0].shape is not None
            and node.attributes.get_int("axis", 0) == 0
        ]
        sizes = [rows_ for rows_ in rows if isinstance(rows_, int)]
        if sizes and value.name is not None:
            by_input[value.name] = min(sizes)
    return by_input


def watched(found: Iterable[Entrance]) -> tuple[dict[str, int], dict[str, float]]:
    """(value → its axis of channels, value → magnitude beyond which its elements are counted): the
    measurements that these entrances need."""
    axes: dict[str, int] = {}
    limits: dict[str, float] = {}
    for entrance in found:
        if entrance.batchnorm is not None:
            axes[entrance.batchnorm.value] = 1
        elif entrance.product is not None:
            name, axis = entrance.product
            axes[name] = axis
            if entrance.activation is not None:
                op, value = entrance.activation
                axes[value], limits[value] = axis, FLAT[op]
    return axes, limits


def measure(
    runs: Iterable[Feed], axes: Mapping[str, int], limits: Mapping[str, float]
) -> dict[str, ChannelMoments]:
    """The measurements of each value of `axes` in the runs; each run returns values by name."""
    return {
        name: seen
        for name, tally in _tallied(runs, axes, limits).items()
        if (seen := tally.result()) is not None
    }


def _tallied(
    runs: Iterable[Feed], axes: Mapping[str, int], limits: Mapping[str, float]
) -> dict[str, _Tally]:
    tallies = {name: _Tally(axis, limits.get(name, np.inf)) for name, axis in axes.items()}
    for values in runs:
        for name, tally in tallies.items():
            tally.add(values[name].astype(np.float64))
    return tallies


class _Tally:
    """Sums over the runs of one value."""

    def __init__(self, axis: int, limit: float) -> None:
        self._axis, self._limit = axis, limit
        self._sums: np.ndarray | float = 0.0  # [2, C]: of numbers, of their squares
        self._rows = self._beyond = 0

    def add(self, x: np.ndarray) -> None:
        rows = np.moveaxis(x, self._axis, -1).reshape(-1, x.shape[self._axis])
        self._sums = self._sums + np.stack([rows.sum(axis=0), (rows**2).sum(axis=0)])
        self._rows += len(rows)
        self._beyond += int((np.abs(x) > self._limit).sum())

    def result(self) -> ChannelMoments | None:
        """The measurement; None if there was no run."""
        if not self._rows or isinstance(self._sums, float):
            return None
        mean, square = self._sums / self._rows
        variance = np.maximum(square - mean**2, 0.0)
        return ChannelMoments(mean, variance, self._beyond / (self._rows * max(len(mean), 1)))


def _entrance(start: ir.Value) -> Entrance | None:
    steps: list[tuple[str, float, float]] = []
    for node in _behind(start, _LAYOUT, steps):
        if node.op_type == "BatchNormalization":
            return Entrance(batchnorm=_batchnorm(node), own=tuple(steps))
        weight = graph.constant_weight(node)
        if weight is None or node.domain:
            continue
        output = node.outputs[0]
        axis = 1 if node.op_type in ("Conv", "ConvTranspose") else -1
        bias = graph.array(node.inputs[2]) if len(node.inputs) > 2 else None
        constants, activation = _added(output)
        norm = next(
            (
                batchnorm
                for behind in _behind(output, _BETWEEN)
                if behind.op_type == "BatchNormalization"
                and (batchnorm := _batchnorm(behind)) is not None
            ),
            None,
        )
        squares = [
            float(np.mean(np.square(c, dtype=np.float64)))
            for c in (bias, *constants)
            if c is not None and c.size
        ]
        return Entrance(
            (str(output.name), axis), float(np.sqrt(sum(squares))), activation, norm, tuple(steps)
        )
    return None


def _behind(
    start: ir.Value, through: frozenset[str], own: list[tuple[str, float, float]] | None = None
) -> Iterator[ir.Node]:
    """The nodes that read a value, directly or after these operators, the nearest first. Arithmetic
    with a constant is passed too, and added to `own`."""
    waiting = deque([start])
    seen: set[ir.Node] = set()
    while waiting and len(seen) < _DEEP:
        for node, index in _uses(waiting.popleft()):
            if node in seen:
                continue
            seen.add(node)
            yield node
            constant = _other(node, index)
            if own is not None and constant is not None:
                own.append((node.op_type, float(constant.min()), float(constant.max())))
            passes = own is not None and constant is not None
            if passes or (node.op_type in through and not (node.op_type == "Add" and index > 1)):
                waiting.append(node.outputs[0])


def _uses(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """The uses of a value in its own graph. The values in the body of an If or Loop cannot be
    watched."""
    return [(node, index) for node, index in value.uses() if node.graph is value.graph]


def _other(node: ir.Node, index: int) -> np.ndarray | None:
    """The constant with which arithmetic combines a value, if the value is the first operand or the
    order does not matter."""
    if node.op_type not in _ARITHMETIC or node.domain or len(node.inputs) != 2:
        return None
    if index == 1 and node.op_type in ("Sub", "Div"):
        return None
    numbers = graph.array(node.inputs[1 - index])
    return numbers if numbers is not None and numbers.size else None


def _added(output: ir.Value) -> tuple[list[np.ndarray], tuple[str, str] | None]:
    """Constants that are added to the result of a product, and the activation directly after
    them."""
    constants: list[np.ndarray] = []
    value = output
    for _ in range(_DEEP):
        uses = _uses(value)
        if len(uses) != 1:
            break
        node, index = uses[0]
        other = _other(node, index) if node.op_type == "Add" else None
        if other is not None:
            constants.append(other)
        elif node.op_type in FLAT:
            return constants, (node.op_type, str(value.name))
        elif node.op_type not in _LAYOUT:
            break
        value = node.outputs[0]
    return constants, None


def _batchnorm(node: ir.Node) -> BatchNorm | None:
    """The batch norm; None if its statistics are not constants, or are those of a network without
    training."""
    mean, variance = (graph.array(value) for value in node.inputs[3:5])
    source = node.inputs[0]
    if mean is None or variance is None or source is None:
        return None
    if not mean.any() and (variance == 1).all():  # the initial values of all libraries
        return None
    return BatchNorm(
        str(node.name or node.outputs[0].name),
        str(source.name),
        mean.astype(np.float64),
        variance.astype(np.float64),
    )
