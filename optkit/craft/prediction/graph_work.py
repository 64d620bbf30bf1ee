"""A graph as work, before any compiler has seen it.

It assumes the usual fusions of GPU compilers: pointwise operators and layout changes run inside
their neighbours (a residual sum reads its other operand), and softmax(Q Kᵀ) V is one kernel that
does not write the scores. Matrix products with a constant weight and convolutions have the planned
precision; products of two activations have the carrier dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from optkit.craft.prediction.work import PEAKS, Work
from optkit.facts.node_cost import NodeCost, Recurrence
from optkit.facts.precisions import Precision
from optkit.ground.devices import Target

# Operators that read all of their input before they write, or pick from it: kernels of their own.
_KERNELS = frozenset(
    {
        "AveragePool", "Concat", "CumSum", "Einsum", "Gather", "GatherElements", "GatherND",
        "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "GRU", "InstanceNormalization",
        "LayerNormalization", "LpNormalization", "LRN", "LSTM", "MaxPool", "MaxUnpool",
        "MeanVarianceNormalization", "NonMaxSuppression", "Pad", "ReduceL2", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceSum", "Resize", "RMSNormalization", "RNN", "RoiAlign",
        "ScatterElements", "ScatterND", "SimplifiedLayerNormalization", "Softmax", "LogSoftmax",
        "TopK", "Upsample",
    }
)  # fmt: skip
# Pointwise, of two activations: run in the kernel of one and read the other.
_JOINING = frozenset({"Add", "Sub", "Mul", "Div", "Where"})
SMALL = 256  # bytes: arithmetic on shapes, which compilers fold

# Reads of their first input as many bytes as they write, however large it is.
LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
PICKING = LOOKUPS | {"Slice", "Split"}

_CONTROL = frozenset(
    {"If", "Loop", "Scan", "SequenceMap", "LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"}
)
# Products that have no weight of their own to be counted by.
_MULTIPLYING = frozenset(
    {
        "Attention",
        "DeformConv",
        "Einsum",
        "GroupQueryAttention",
        "MatMulInteger",
        "MultiHeadAttention",
        "QLinearConv",
        "QLinearMatMul",
    }
)


def of_graph(
    costs: Mapping[str, NodeCost],
    number: Precision,
    target: Target,
    planned: Mapping[str, Precision] | None = None,
) -> list[Work]:
    """Work of every node that becomes a kernel. `costs`: at the sizes of one batch. Nodes of
    unknown size count as nothing. `planned`: node → precision, where not every product with a
    weight is in `number`; those that it leaves out stay in the carrier. Nodes that all run inside
    their neighbours are one kernel together."""
    attends = any(is_attention(cost) for cost in costs.values())
    works = []
    for name, cost in costs.items():
        product = number
        if planned is not None and cost.macs:
            product = planned.get(name, number.unquantized)
        works.append(_work(cost, product, target, attends))
    return [work for work in works if work is not None] or [_alone(costs, number)]


def _alone(costs: Mapping[str, NodeCost], number: Precision) -> Work:
    moved = max(((c.in_bytes or 0) + (c.out_bytes or 0) for c in costs.values()), default=0)
    return Work("elementwise", number.carrier, moved=float(moved))


def multiplies_in(precision: Precision) -> str:
    """The peak of a product of quantized weights: the carrier's where weights alone are
    quantized."""
    codes = precision.activations
    return precision.carrier if codes is None else PEAKS[codes.dtype]


def category(works: Sequence[Work]) -> str:
    """Which measured kind of model this is like: `convolution` or `encoder`."""
    convolved = sum(w.operations for w in works if w.kind == "conv")
    return "convolution" if 2 * convolved > sum(w.operations for w in works) else "encoder"


def uncounted(costs: Mapping[str, NodeCost]) -> list[str]:
    """Operators whose cost is not fully known: products of unknown size, those whose operations
    nobody counts, operators of the user, and what runs an unknown number of times or one part of
    several."""
    return sorted(
        {
            c.op
            for c in costs.values()
            if c.macs is None
            or c.foreign
            or c.op in _CONTROL
            or (not c.macs and c.op in _MULTIPLYING)
        }
    )


class _Sizes(NamedTuple):
    """Bytes of a node's activations as the graph has them, and the bits of one of their numbers."""

    read: int
    written: int
    bits: int


def _work(cost: NodeCost, number: Precision, target: Target, attends: bool) -> Work | None:
    """The kernel of a node; None where it has none. `attends`: the graph has attention."""
    if cost.in_bytes is None or cost.out_bytes is None or cost.bits is None:
        return None
    sizes = _Sizes(cost.in_bytes, cost.out_bytes, cost.bits)
    if cost.recurrence:
        return _recurrent(cost, cost.recurrence, sizes, number)
    if cost.foreign:  # a plugin: no compiler puts it into another kernel
        return Work("elementwise", number.carrier, moved=float(sizes.read + sizes.written))
    if not cost.macs:
        return _elementwise(cost.op, sizes, number, attends)
    if is_attention(cost):  # the larger side is the scores, which are never written
        moved = min(sizes.read, sizes.written) * number.carrier_bits / sizes.bits
        return Work("attention", number.carrier, 2.0 * cost.macs, moved=moved, kernels=0.5)
    return _product(cost, sizes, number, target)


def _elementwise(op: str, sizes: _Sizes, number: Precision, attends: bool) -> Work | None:
    """What a node that multiplies nothing adds; None where it runs inside its neighbours."""
    if op in _JOINING and sizes.read > sizes.written > SMALL:
        held = number.carrier_bits if attends else number.activation_bits  # as products beside it
        moved = (sizes.read - sizes.written) * held / sizes.bits  # its own side is there already
        return Work("elementwise", number.carrier, moved=moved, kernels=0)
    inside = op not in _KERNELS or (attends and op == "Softmax")
    if inside or sizes.written <= SMALL:
        return None
    narrow = number.carrier_bits / sizes.bits
    read = sizes.written if op in LOOKUPS else sizes.read
    return Work("elementwise", number.carrier, moved=(read + sizes.written) * narrow)


def _product(cost: NodeCost, sizes: _Sizes, number: Precision, target: Target) -> Work:
    """A convolution or a matrix product with a constant weight."""
    convolves = cost.op.startswith("Conv")
    keeps = convolves and (number.weight_codes_only or not _convolves_in(target, number))
    carried = number.carrier_bits
    weight_bits, read = (
        (carried, carried) if keeps else (number.weight_bits, number.activation_bits)
    )
    written = read if convolves else carried
    columns = cost.columns or 1
    weights = cost.weight_bytes * 8 / sizes.bits
    return Work(
        "conv" if convolves else "gemm",
        number.carrier if keeps else multiplies_in(number),
        2.0 * (cost.macs or 0),
        weights * weight_bits / 8,
        (sizes.read * read + sizes.written * written) / sizes.bits,
        rows=sizes.written * 8 / sizes.bits / columns,
        columns=columns,
        unpacked=weights if number.weight_codes_only and not keeps else 0.0,
    )


def _recurrent(cost: NodeCost, cell: Recurrence, sizes: _Sizes, number: Precision) -> Work:
    """A cell that waits for its last step: two kernels for each step, a product and the gates, as
    TensorRT-RTX lists them. Its weights are read from memory once, then they are in the cache."""
    share = number.carrier_bits / sizes.bits / cell.steps
    return Work(
        "gemm",
        number.carrier,
        2.0 * cell.macs / cell.steps,
        cost.weight_bytes * share,
        (sizes.read + sizes.written) * share,
        kernels=2,
        times=cell.steps,
    )


def is_attention(cost: NodeCost) -> bool:
    return bool(cost.macs) and cost.op == "MatMul" and not cost.weight_bytes


def _convolves_in(target: Target, number: Precision) -> bool:
    codes = number.activations
    if codes is None or codes.dtype == "int8":
        return True
    return codes.dtype == "float8e4m3fn" and target.supports("fp8_conv")
