"""A graph as work, before any compiler has seen it.

What compilers of GPUs do is taken for granted: pointwise operators and changes of layout run inside
their neighbours (a residual sum reads its other side), and softmax(Q Kᵀ) V is one kernel that never
writes the scores. Matrix products
with a constant weight and convolutions get the precision that is planned; products of two
activations stay in its carrier.
"""

from __future__ import annotations

from collections.abc import Mapping

from optkit.devices import Target
from optkit.graph import NodeCost
from optkit.precisions import Precision
from optkit.prediction.work import BITS, PEAKS, Work

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
_SMALL = 256  # bytes: arithmetic on shapes, which compilers fold

_CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap", "LSTM", "GRU", "RNN"})
# Products that have no weight of their own to be counted by.
_MULTIPLYING = frozenset(
    {
        "Attention", "DeformConv", "Einsum", "GroupQueryAttention", "MatMulInteger",
        "MultiHeadAttention", "QLinearConv", "QLinearMatMul",
    }
)  # fmt: skip


def of_graph(costs: Mapping[str, NodeCost], precision: Precision, target: Target) -> list[Work]:
    """Work of every node that becomes a kernel. `costs`: at the sizes of one batch. Nodes of
    unknown size count as nothing."""
    attends = any(_is_attention(cost) for cost in costs.values())
    found = [_work(cost, precision, target, attends) for cost in costs.values()]
    return [work for work in found if work is not None]


def multiplies_in(precision: Precision) -> str:
    """The peak of a product of quantized weights: the carrier's where weights alone are
    quantized."""
    codes = precision.activations
    return precision.carrier if codes is None else PEAKS[codes.dtype]


def category(works: list[Work]) -> str:
    """Which measured kind of model this is like: `convolution` or `encoder`."""
    convolved = sum(w.operations for w in works if w.kind == "conv")
    return "convolution" if 2 * convolved > sum(w.operations for w in works) else "encoder"


def uncounted(costs: Mapping[str, NodeCost]) -> list[str]:
    """Operators whose cost is not fully known: products of unknown size, those whose operations
    nobody counts, and what runs an unknown number of times or one part of several."""
    return sorted(
        {
            c.op
            for c in costs.values()
            if c.macs is None or c.op in _CONTROL or (not c.macs and c.op in _MULTIPLYING)
        }
    )


def _work(cost: NodeCost, number: Precision, target: Target, attends: bool) -> Work | None:
    if cost.in_bytes is None or cost.out_bytes is None or cost.bits is None:
        return None
    carried = BITS[number.carrier]
    narrow = carried / cost.bits  # the graph's own bytes → those of the carrier
    beside = cost.in_bytes - cost.out_bytes  # what a pointwise operator reads besides its own side
    if not cost.macs:
        if cost.op in _JOINING and cost.in_bytes > cost.out_bytes > _SMALL:
            held = carried if attends else number.activation_bits  # as the products beside it
            return Work("elementwise", number.carrier, moved=beside * held / cost.bits, kernels=0)
        if cost.op not in _KERNELS or cost.out_bytes <= _SMALL:
            return None
        if attends and cost.op == "Softmax":
            return None
        return Work("elementwise", number.carrier, moved=(cost.in_bytes + cost.out_bytes) * narrow)
    if _is_attention(cost):
        moved = min(cost.in_bytes, cost.out_bytes) * narrow  # the other side is the scores
        return Work("attention", number.carrier, 2.0 * cost.macs, moved=moved, kernels=0.5)
    convolves = cost.op.startswith("Conv")
    keeps = convolves and (number.weight_only or not _convolves_in(target, number))
    dtype = number.carrier if keeps else multiplies_in(number)
    weight_bits = carried if keeps else number.weight_bits
    read = carried if keeps else number.activation_bits
    written = read if convolves else carried
    columns = cost.columns or 1
    weights = cost.weight_bytes * 8 / cost.bits
    return Work(
        "conv" if convolves else "gemm", dtype, 2.0 * cost.macs, weights * weight_bits / 8,
        (cost.in_bytes * read + cost.out_bytes * written) / cost.bits,
        rows=cost.out_bytes * 8 / cost.bits / columns, columns=columns,
        unpacked=weights if number.weight_only and not keeps else 0.0,
    )  # fmt: skip


def _is_attention(cost: NodeCost) -> bool:
    return bool(cost.macs) and cost.op == "MatMul" and not cost.weight_bytes


def _convolves_in(target: Target, number: Precision) -> bool:
    codes = number.activations
    if codes is None or codes.dtype == "int8":
        return True
    return codes.dtype == "float8e4m3fn" and target.supports("fp8_conv")
