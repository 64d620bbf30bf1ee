"""Which nodes stay in FP32 when a graph is cast to half precision, each with its reason.

The decision uses measured magnitudes of values (`magnitude`). A node stays in FP32 in these cases:

    range       a value that it reads or computes comes within MARGIN of the largest half-precision
                number, or has only numbers so small that half precision drops bits of them (unless
                it is added to others)
    division    it divides by small numbers, or computes their root or logarithm
    counting    integers exceed those that half precision represents exactly (2048, in BF16 256)
    constants   one of its constants is outside the range, and is neither a mask nor a bound
    sums        it adds more than TERMS numbers: ONNX does not define the dtype of the accumulator,
                and an accumulator in half precision loses 3 bits over this many
    angles      it is a sine or cosine, or feeds only these: the error of an angle is absolute, and
                positions may be larger than in the samples
    recurrences a recurrence has lengths of its sequences, or the node computes what a recurrence
                in FP32 reads (`before_recurrences`)

Matrix products and convolutions accumulate in FP32 on all backends; LayerNormalization,
GroupNormalization and RMSNormalization do so by their definition (stash_type 1). Softmax first
subtracts its maximum, so its numbers are in the range; in half precision, attention compiles to one
kernel without a Cast inside. If nothing was measured, functions whose results can leave the range
for normal inputs also stay in FP32.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from optkit.craft.precision_cast import before_recurrences
from optkit.craft.precision_cast.halves import MARGIN, Half
from optkit.craft.precision_cast.magnitude import Magnitude, Magnitudes
from optkit.ground import graph

TERMS = 64
FLOAT = ir.DataType.FLOAT

_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64)
_PERIODIC = frozenset({"Sin", "Cos", "Tan"})
# Operators that add many terms, with an accumulator of undefined dtype, except over constant axes.
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
# x² overflows from 256, eˣ from 11.1, 1/x below 1.5e-5: without measurements these stay in FP32
_STEEP = frozenset(
    {
        *("Pow", "Exp", "Log", "Sqrt", "Reciprocal", "Softplus", "LogSoftmax"),
        *("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
    }
)
# op → the index of the input
_DIVISORS = MappingProxyType({"Div": 1, "Reciprocal": 0, "Sqrt": 0, "Log": 0})
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
_SURELY = -1e5  # a lower number, as a fill or on its way to a softmax, is an infinity
_ENDLESS = 1e9  # from this magnitude on it is a fill; a smaller number may be data

DTYPED = MappingProxyType({"Cast": "to", "ConstantOfShape": "value"})
"""Operators whose result has the dtype in this attribute."""


def dividends(model: ir.Model) -> set[str]:
    """The values whose least magnitude matters: divisors, operands of roots and logarithms, and the
    numbers that are added to these before."""
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
    """The number that replaces a constant input's numbers outside the range: the magnitude of mask
    fills, or the largest half-precision number for a bound. None if they are data."""
    beyond = numbers[np.abs(numbers) > half.kind.largest]
    # if the smallest number is this large, or the largest is this low, they are data
    if node.op_type in BOUNDED:
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
    """Whether it leads only to softmaxes, through sums and products with masks."""
    readers = value.consumers()
    return bool(readers) and all(
        node.op_type in _SOFTMAX
        or (node.op_type in _MASKING | _FILLED | BOUNDED and all(map(_only_masks, node.outputs)))
        for node in readers
    )


Kept = dict[ir.Node, str]
"""Node kept in FP32 → the reason, for the user."""


def plan(model: ir.Model, half: Half, measured: Magnitudes | None) -> Kept:
    """The nodes that stay in FP32, each with its reason. All nodes in subgraphs stay."""
    nodes = list(model.graph)
    judge = _Judge(half, measured)
    kept = {node: reason for node in nodes if (reason := judge.reason(node)) is not None}
    angles: dict[ir.Node, str] = {}
    for node in reversed(nodes):
        if node.op_type in _ANGLE and node not in kept and _only_angles(node, angles):
            angles[node] = "it computes an angle"
    kept |= angles
    kept = dict.fromkeys(before_recurrences.sources(model, kept), before_recurrences.REASON) | kept
    while grown := {n: r for n in nodes if n not in kept and (r := _joins(n, kept))}:
        kept.update(grown)
    return kept


@dataclass(frozen=True)
class _Judge:
    """Decides for a single node why it cannot be half precision."""

    half: Half
    measured: Magnitudes | None

    def reason(self, node: ir.Node) -> str | None:
        if (why := _unknown(node)) is not None:
            return why
        if not any(is_wide(value) for value in (*node.inputs, *node.outputs) if value is not None):
            return None
        judgements = (self._operator, self._constants, self._sums, self._values)
        return next((why for judge in judgements if (why := judge(node)) is not None), None)

    def unfit(self, value: ir.Value) -> str | None:
        """Why half precision cannot represent the value, according to its measured magnitudes."""
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
        if before_recurrences.takes_lengths(node):
            return "TensorRT takes lengths of sequences only beside states of float32"
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
        # a single number may decide. The largest number of a weight must keep all but two of its
        # bits, and a bias as small as this does not count
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
        """Whether all its readers add it to larger numbers, whose rounding is coarser."""
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


def cache_fits(value: ir.Value, half: Half, measured: Magnitudes | None) -> bool:
    """Whether a key or value of a cache may be half precision."""
    return is_wide(value) and _Judge(half, measured).unfit(value) is None


def fill_of(node: ir.Node) -> np.ndarray | None:
    """The fill of a ConstantOfShape of floats, if an attribute defines it."""
    given = node.attributes.get("value") if node.op_type == "ConstantOfShape" else None
    if given is None or not is_wide(node.outputs[0]):
        return None
    fill: np.ndarray = given.as_tensor().numpy()
    return fill


def _magnitude(numbers: np.ndarray) -> float:
    """The largest finite magnitude. No copy of a large array is made."""
    largest = float(max(-numbers.min(), numbers.max()))
    if np.isfinite(largest):
        return largest
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def _is_count(value: ir.Value) -> bool:
    """Whether the node casts integers to floats."""
    node = value.producer()
    if node is None or not is_wide(value):
        return False
    source = node.inputs[0]
    cast = node.op_type == "Cast" and source is not None and source.dtype in _INTEGERS
    return cast or node.op_type == "Range"


def _terms(node: ir.Node) -> int | None:
    """How many numbers one of its results sums; None if this depends on the feed."""
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
    """Why a node of any dtype stays, because its values or its function are unknown."""
    made = [value for value in node.outputs if value.name]  # the others are left out
    values = [value for value in (*node.inputs, *made) if value is not None]
    if any(not isinstance(value.type, ir.TensorType | None) for value in values):
        return "it works on sequences"
    if any(value.type is None for value in values):
        return "the type of what it reads or makes is not known"
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    has_subgraph = any(attribute.type in kinds for attribute in node.attributes.values())
    return "it holds a subgraph" if has_subgraph else None


def _only_angles(node: ir.Node, angles: Kept) -> bool:
    """Whether every reader is a sine or cosine, or feeds one."""
    readers = _readers(node)
    return bool(readers) and all(r.op_type in _PERIODIC or r in angles for r in readers)


def _joins(node: ir.Node, kept: Kept) -> str | None:
    """Whether arithmetic on results of nodes in FP32 stays in FP32, because it then needs no
    further Cast: so a decomposed norm stays whole. The nodes between two such nodes stay too,
    except products."""
    floats = [v for v in node.inputs if v is not None and is_wide(v)]
    inside = [v for v in floats if v.producer() in kept]
    if not inside or node.op_type in _PRODUCTS:
        return None
    if node.op_type not in _MOVING:
        if not all(v in inside or graph.is_constant(v) or _read_by(v, kept) for v in floats):
            return None  # it would need one more Cast
        if node.op_type in _ARITHMETIC:
            return "it continues an FP32 chain"
    return "it lies between FP32 nodes" if _leads_into(node, kept) else None


def _leads_into(node: ir.Node, kept: Kept) -> bool:
    """Whether all its readers stay in FP32, or the readers of nodes that only move its numbers."""
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
    """Whether an attribute makes the result a wide float, for any inputs."""
    names = ("dtype", "output_dtype", "output_datatype")
    return any(node.attributes.get_int(name) in [d.value for d in _WIDE] for name in names)
