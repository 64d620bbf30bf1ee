"""Which nodes stay in FP32 when a graph goes to half precision, each with its reason.

By evidence, where the magnitudes of values were measured (`magnitude`). A node is kept where

    range       a value that it reads or makes comes within MARGIN of the largest half, or lies
                among numbers so small that half drops bits of them (unless it is added to others)
    division    what is divided by, or rooted or logged, goes down to numbers among those
    counting    whole numbers reach what half cannot tell apart (FP16: 2048, BF16: 256)
    constants   one of its constants is outside half's range, and no mask or bound
    sums        it adds up more than TERMS numbers: ONNX does not say in which dtype it
                accumulates, and an accumulator of half loses 3 bits over so many
    angles      it is a sine or cosine, or feeds only those: an angle's error is absolute, and
                positions go on where samples end

Matrix products and convolutions accumulate in FP32 wherever they run; LayerNormalization,
GroupNormalization and RMSNormalization do by their definition (stash_type 1). Softmax subtracts its
maximum first, so half is in range; kept in half, attention compiles to one kernel without a Cast
inside. Where nothing was measured, functions whose results leave half for inputs well inside it are
kept as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from optkit import graph
from optkit.precision_cast.halves import MARGIN, Half
from optkit.precision_cast.magnitude import Magnitude, Measured

TERMS = 64
FLOAT = ir.DataType.FLOAT

_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64)
_PERIODIC = frozenset({"Sin", "Cos", "Tan"})
# What adds up many terms in an accumulator that ONNX leaves open, other than over constant axes.
_ACCUMULATING = frozenset(
    {
        *("CumSum", "ReduceProd", "LpNormalization", "MeanVarianceNormalization", "LRN"),
        *("BatchNormalization", "InstanceNormalization"),
    }
)
_SUMS = frozenset(
    {
        *("ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"),
        *("ReduceLogSumExp", "GlobalAveragePool"),
    }
)
_SQUARED = frozenset({"ReduceL2", "ReduceSumSquare"})
# x² from 256, eˣ from 11.1, 1/x below 1.5e-5: where nothing was measured these are not trusted.
_STEEP = frozenset(
    {
        *("Pow", "Exp", "Log", "Sqrt", "Reciprocal", "Softplus", "LogSoftmax"),
        *("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
    }
)
_DIVISORS = MappingProxyType({"Div": 1, "Reciprocal": 0, "Sqrt": 0, "Log": 0})  # op → which input
_STASHED = frozenset({"LayerNormalization", "GroupNormalization", "RMSNormalization"})
_ARITHMETIC = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Max", "Min", "Clip"),
        *("Pow", "Exp", "Log", "Sqrt", "Reciprocal"),
    }
)
_MOVING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Identity"})
_PRODUCTS = frozenset({*graph.WEIGHTED, "MatMul", "Einsum", "Attention"})
_TO_DIVISORS = _MOVING | {"Add", "Max", "Clip", "Sqrt"}
_ANGLE = _MOVING | _ARITHMETIC | {"Cast", "Concat", "MatMul", "Einsum", "Slice", "Range"}
_FILLED = frozenset({"Where", "Pad", "ConstantOfShape"})
BOUNDED = frozenset({"Clip", "Min", "Max"})
_MASKING = _MOVING | {"Slice", "Gather", "Concat", "Tile", "Cast", "Add", "Sub", "Mul"}
_SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Attention"})
_SURELY = -1e5  # what is lower, as a fill or on its way to a softmax: an infinity
_ENDLESS = 1e9  # so is a fill from here on; a smaller one may be data

DTYPED = MappingProxyType({"Cast": "to", "ConstantOfShape": "value"})
"""Operators whose result has the dtype that this attribute says."""


def dividends(model: ir.Model) -> set[str]:
    """The values whose least magnitude matters: what is divided by, rooted or logged, and what
    numbers are added to on the way there."""
    values: set[ir.Value] = set()
    for node in reversed(list(model.graph)):
        index = _DIVISORS.get(node.op_type)
        if index is not None and len(node.inputs) > index:
            operands = [node.inputs[index]]
        else:
            passes = node.op_type in _TO_DIVISORS and not values.isdisjoint(node.outputs)
            operands = list(node.inputs) if passes else []
        values |= {v for v in operands if v is not None and not graph.is_constant(v)}
    return {str(value.name) for value in values if is_wide(value)}


def is_wide(value: ir.Value) -> bool:
    """Whether it is a tensor of FP32 or FP64."""
    return isinstance(value.type, ir.TensorType) and value.dtype in _WIDE


def stands_for_infinity(node: ir.Node, numbers: np.ndarray, half: Half) -> float | None:
    """What brings a constant input's numbers beyond half's range into it: the magnitude that masks
    are filled with, the largest half as a bound; None where they are data."""
    beyond = numbers[np.abs(numbers) > half.kind.largest]
    if node.op_type in BOUNDED:  # a least number that large, or a largest that low, is data
        wrong = {"Max": beyond > 0, "Min": beyond < 0}.get(node.op_type)
        return None if wrong is not None and wrong.any() else half.kind.largest
    if node.op_type in _FILLED:
        endless = bool(((beyond <= _SURELY) | (beyond >= _ENDLESS)).all())
        return half.fill if endless or all(map(_only_masks, node.outputs)) else None
    low = bool((beyond <= _SURELY).all())
    if low and node.op_type in _MASKING and all(map(_only_masks, node.outputs)):
        return half.fill
    return None


def _only_masks(value: ir.Value) -> bool:
    """Whether all that it leads to is a softmax, by way of sums and products with masks."""
    readers = value.consumers()
    return bool(readers) and all(
        node.op_type in _SOFTMAX
        or (node.op_type in _MASKING | _FILLED | BOUNDED and all(map(_only_masks, node.outputs)))
        for node in readers
    )


Kept = dict[ir.Node, str]
"""Node kept in FP32 → why, for the user."""


def plan(model: ir.Model, half: Half, measured: Measured | None) -> Kept:
    """The nodes that stay in FP32, each with its reason. All nodes in subgraphs do."""
    nodes = list(model.graph)
    judge = _Judge(half, measured)
    kept = {node: reason for node in nodes if (reason := judge.reason(node)) is not None}
    angles: dict[ir.Node, str] = {}
    for node in reversed(nodes):
        if node.op_type in _ANGLE and node not in kept and _only_angles(node, angles):
            angles[node] = "it computes an angle"
    kept |= angles
    while grown := {n: r for n in nodes if n not in kept and (r := _joins(n, kept))}:
        kept.update(grown)
    return kept


@dataclass(frozen=True)
class _Judge:
    """Says of a node by itself why it cannot be half."""

    half: Half
    measured: Measured | None

    def reason(self, node: ir.Node) -> str | None:
        if (why := _unknown(node)) is not None:
            return why
        if not any(is_wide(value) for value in (*node.inputs, *node.outputs) if value is not None):
            return None
        judgements = (self._operator, self._constants, self._sums, self._values)
        return next((why for judge in judgements if (why := judge(node)) is not None), None)

    def unfit(self, value: ir.Value) -> str | None:
        """Why half cannot hold the value, by what was measured of it."""
        if (magnitude := self._magnitude(value)) is None:
            return None
        largest = magnitude.largest
        if largest > self.half.trusted:
            return f"{value.name} reaches {largest:.3g}{self._on}, {self._ends}"
        if 0 < largest < self.half.kind.smallest and not self._drowns(value):
            return f"{value.name} reaches only {largest:.3g}{self._on}, too small for {self._name}"
        if magnitude.least < self.half.kind.smallest:
            least = f"goes down to {magnitude.least:.3g}{self._on}"
            return f"{value.name} is divided by and {least}, too small for {self._name}"
        if _is_count(value) and largest * MARGIN > self.half.kind.exact:
            return self._counts(value, f"up to {largest:.0f}{self._on}")
        return None

    def _operator(self, node: ir.Node) -> str | None:
        op = node.op_type
        if op in _PERIODIC:
            return f"{op} of an angle, whose error is absolute"
        if op in _ACCUMULATING:
            return f"{op} may accumulate in {self._name}"
        if op in _STASHED and node.attributes.get_int("stash_type", 1) != 1:
            return "it does not accumulate in float32"
        allowed = graph.takes_half(node, self.half.dtype)
        if allowed is None:
            return "its operator is not defined by ONNX"
        if op not in DTYPED and (not any(allowed[0]) or _fixes_dtype(node)):
            return f"its operator does not take {self._name} here"
        if self.measured is None:
            if op in _STEEP:
                return f"{op} loses range or precision in {self._name}, and nothing was measured"
            if self.half.kind.exact < 2048 and any(map(_is_count, node.outputs)):
                return self._counts(node.outputs[0], "and nothing was measured")
        return None

    def _constants(self, node: ir.Node) -> str | None:
        fill = fill_of(node)
        if fill is not None and stands_for_infinity(node, fill, self.half) is None:
            return f"it fills with {_magnitude(fill):.3g}, beyond {self._name}"
        sentences = (self._constant(node, index) for index in range(len(node.inputs)))
        return next((sentence for sentence in sentences if sentence is not None), None)

    def _constant(self, node: ir.Node, index: int) -> str | None:
        value = node.inputs[index]
        numbers = graph.array(value) if value is not None and is_wide(value) else None
        if value is None or numbers is None or not numbers.size:
            return None
        largest = _magnitude(numbers)
        if largest > self.half.kind.largest and not stands_for_infinity(node, numbers, self.half):
            return f"constant {value.name} reaches {largest:.3g}, beyond {self._name}"
        # a number may decide alone; of a weight the largest must keep all but two of its bits,
        # and a bias so small does not count
        if node.op_type in graph.WEIGHTED:
            least = self.half.kind.smallest / MARGIN
            counts = index < 2 and not self._drowns(node.outputs[0])
        else:
            least, counts = self.half.kind.smallest, numbers.size == 1
        if 0 < largest < least and counts:
            return f"constant {value.name} is {largest:.3g}, too small for {self._name}"
        return None

    def _sums(self, node: ir.Node) -> str | None:
        if node.op_type not in _SUMS:
            return None
        terms = _terms(node)
        if terms is None or terms > TERMS:
            count = "an open number of" if terms is None else str(terms)
            return f"{node.op_type} of {count} numbers may accumulate in {self._name}"
        if (magnitude := self._magnitude(node.inputs[0])) is None:
            return f"{node.op_type} may leave {self._name}, and nothing was measured"
        total = terms * (magnitude.largest**2 if node.op_type in _SQUARED else magnitude.largest)
        if total > self.half.trusted:
            return f"its sum may reach {total:.3g}{self._on}, {self._ends}"
        return None

    def _values(self, node: ir.Node) -> str | None:
        for value in (*node.outputs, *node.inputs):
            if value is not None and (why := self.unfit(value)) is not None:
                return why
        return None

    def _drowns(self, value: ir.Value) -> bool:
        """Whether all that reads it adds it to larger numbers, whose own rounding is coarser."""
        readers = value.consumers()
        if self.measured is None or not readers or value.is_graph_output():
            return False
        for node in readers:
            result = node.outputs[0]
            magnitude = self._magnitude(result) if node.op_type in ("Add", "Sub") else None
            covered = magnitude is not None and magnitude.largest >= self.half.kind.smallest
            passed = magnitude is not None or node.op_type in _MOVING
            if not covered and not (passed and self._drowns(result)):
                return False
        return True

    def _magnitude(self, value: ir.Value | None) -> Magnitude | None:
        return None if self.measured is None else self.measured.of(value)

    def _counts(self, value: ir.Value, what: str) -> str:
        return (
            f"{value.name} counts {what}; {self._name} tells whole numbers apart up to "
            f"{self.half.kind.exact}"
        )

    @property
    def _name(self) -> str:
        return self.half.kind.name

    @property
    def _ends(self) -> str:
        return f"{self._name} ends at {self.half.kind.largest:.6g}"

    @property
    def _on(self) -> str:
        return f" on {self.measured.on}" if self.measured is not None else ""


def cache_fits(value: ir.Value, half: Half, measured: Measured | None) -> bool:
    """Whether a key or value that is kept from call to call may be kept in half."""
    return is_wide(value) and _Judge(half, measured).unfit(value) is None


def fill_of(node: ir.Node) -> np.ndarray | None:
    """What a ConstantOfShape of floats fills with, where an attribute says it."""
    given = node.attributes.get("value") if node.op_type == "ConstantOfShape" else None
    if given is None or not is_wide(node.outputs[0]):
        return None
    fill: np.ndarray = given.as_tensor().numpy()
    return fill


def _magnitude(numbers: np.ndarray) -> float:
    """The largest finite one; of no large array a copy is made."""
    largest = float(max(-numbers.min(), numbers.max()))
    if np.isfinite(largest):
        return largest
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def _is_count(value: ir.Value) -> bool:
    """Whether whole numbers became floats here."""
    node = value.producer()
    if node is None or not is_wide(value):
        return False
    source = node.inputs[0]
    cast = node.op_type == "Cast" and source is not None and source.dtype in _INTEGERS
    return cast or node.op_type == "Range"


def _terms(node: ir.Node) -> int | None:
    """How many numbers one of its results sums; None where that depends on the feed."""
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    dims = list(source.shape)
    if node.op_type == "GlobalAveragePool":
        chosen = dims[2:]
    else:
        axes = node.inputs[1] if len(node.inputs) > 1 else None
        numbers = graph.array(axes) if axes is not None else np.arange(len(dims))
        if numbers is None:
            return None
        chosen = [dims[int(axis)] for axis in numbers.reshape(-1)]
    sizes = [dim for dim in chosen if isinstance(dim, int)]
    return prod(sizes) if len(sizes) == len(chosen) else None


def _unknown(node: ir.Node) -> str | None:
    """What keeps a node of any dtype, since its values or what it computes is not known."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    if any(not isinstance(value.type, ir.TensorType | None) for value in values):
        return "it works on sequences"
    if any(value.type is None for value in values):
        return "the type of what it reads or makes is not known"
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    has_subgraph = any(attribute.type in kinds for attribute in node.attributes.values())
    return "it holds a subgraph" if has_subgraph else None


def _only_angles(node: ir.Node, angles: Kept) -> bool:
    """Every reader is a sine or cosine, or feeds one."""
    readers = _readers(node)
    return bool(readers) and all(r.op_type in _PERIODIC or r in angles for r in readers)


def _joins(node: ir.Node, kept: Kept) -> str | None:
    """Arithmetic on the results of nodes in FP32 that needs no further Cast stays in FP32: a
    decomposed norm stays whole. So does what lies between two of them, save products."""
    floats = [v for v in node.inputs if v is not None and is_wide(v)]
    inside = [v for v in floats if v.producer() in kept]
    if not inside or node.op_type in _PRODUCTS:
        return None
    if node.op_type not in _MOVING:
        if not all(v in inside or graph.is_constant(v) or _read_by(v, kept) for v in floats):
            return None  # it would take a Cast more
        if node.op_type in _ARITHMETIC:
            return "it continues an FP32 chain"
    return "it lies between FP32 nodes" if _leads_into(node, kept) else None


def _leads_into(node: ir.Node, kept: Kept) -> bool:
    """All that reads it is kept, or of what only moves numbers, may be."""
    readers = _readers(node)
    if node.op_type in _MOVING:
        return bool(readers) and all(r in kept or r.op_type in _ARITHMETIC for r in readers)
    floats = any(map(is_wide, node.outputs))
    return bool(readers) and floats and all(r in kept for r in readers)


def _readers(node: ir.Node) -> list[ir.Node]:
    return [reader for value in node.outputs for reader in value.consumers()]


def _read_by(value: ir.Value, kept: Kept) -> bool:
    return any(user in kept for user in value.consumers())


def _fixes_dtype(node: ir.Node) -> bool:
    """An attribute says that the result is a wide float, whatever the inputs are."""
    names = ("dtype", "output_dtype", "output_datatype")
    return any(node.attributes.get_int(name) in [d.value for d in _WIDE] for name in names)
