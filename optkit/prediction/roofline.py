"""Latency from the roofline of a target: a bound, not an estimate.

A layer that does F operations and moves B bytes on a device of peak P and bandwidth W takes

    max(F / P, B / W)  ≤  t  ≤  F / P + B / W

the left side where computing and moving overlap perfectly, the right side where they take turns
(Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009; the pair of bounds as in jax-ml's
"How to Scale Your Model"). The layers of a model run one after another, so both sides add up.
F is two operations per multiply-accumulate, P the dense peak of the dtype the layer multiplies in,
B every activation and constant at the layer's border. Where weights alone are quantized P is that
of the carrier: they shrink B only.

Both sides leave out launch overhead and assume the peak is reached; real kernels are slower.
Tensors that stay in the L2 cache between layers are counted as if they went through memory; there,
real kernels can be faster. Builds print this bound, since gates may rest on it; what a call is
expected to take is `latency.py`, for `optkit plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from optkit.devices import Target
from optkit.engines import FusedLayer
from optkit.errors import InputRefused, ToolchainMissing
from optkit.evidence import Evidence
from optkit.measurement import Interval, Latency
from optkit.node_cost import NodeCost
from optkit.precisions import Precision, precision
from optkit.prediction.work import PEAKS

# What any compiler moves into the kernels beside it.
_DISSOLVED = ("QuantizeLinear", "DequantizeLinear", "Cast", "Identity")

# What runs an unknown number of times, or one part of several.
_CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap", "LSTM", "GRU", "RNN"})

_NOTE = "optimistic bound: peak rates, no launch overhead"


class Bound(NamedTuple):
    """Seconds that one layer computes and moves bytes; the larger is the least it takes."""

    compute: float
    memory: float


def bounds(
    layers: Sequence[FusedLayer], costs: Mapping[str, NodeCost], target: Target
) -> list[Bound]:
    """Of each layer; arguments and refusals as of `predict`."""
    return [
        Bound(_compute(layer, costs, target), _layer_bytes(layer) / _bandwidth(target))
        for layer in layers
    ]


def predict(
    layers: Sequence[FusedLayer], costs: Mapping[str, NodeCost], target: Target, batch: int
) -> Latency:
    """Bound of an engine's fused layers. `layers` and `costs` must be at the sizes of `batch`;
    `costs`: ONNX node name → cost. `p50_ms` is the left side, `band` both.

    Raises OptkitError for a layer with a dynamic size, ToolchainMissing for an unknown peak.
    """
    found = bounds(layers, costs, target)
    note = f"{_NOTE}, per fused layer{_unrolled(costs)}"
    return _latency(sum(map(max, found)), sum(map(sum, found)), batch, note)


def for_graph(
    costs: Mapping[str, NodeCost],
    target: Target,
    batch: int,
    planned: Mapping[str, str] = MappingProxyType({}),
    carrier: str = "fp16",
    *,
    border: int,
) -> Latency:
    """Bound of a graph that no compiler has fused yet. `costs` at the sizes of `batch`, of a graph
    whose numbers are stored in `carrier`; `planned`: node name → precision of those that differ;
    `border`: bytes of its inputs and outputs.

    The left side counts the matrix products alone, as if all else were fused into them, but no less
    than moving inputs and outputs, which no fusion saves; the right side every node by itself.
    Nodes of unknown size count as nothing.
    """
    compute, memory, unfused = [], [], 0.0
    for name, cost in costs.items():
        number, held = precision(planned.get(name, carrier)), precision(carrier)
        inputs = (cost.in_bytes or 0) * _bits(number, held) / held.activation_bits
        weights = cost.weight_bytes * number.weight_bits / held.weight_bits
        size = inputs + weights + (cost.out_bytes or 0)
        if cost.macs:
            compute.append(2 * cost.macs / _peak(target, _multiplies_in(number, carrier)))
            memory.append(size / _bandwidth(target))
        elif cost.op not in _DISSOLVED:
            unfused += size / _bandwidth(target)
    overlapped = max(sum(map(max, compute, memory)), border / _bandwidth(target))
    separate = max(sum(compute) + sum(memory) + unfused, overlapped)
    note = f"{_NOTE}, from the unfused graph{_unrolled(costs)}"
    return _latency(overlapped, separate, batch, note)


def _bits(number: Precision, carrier: Precision) -> int:
    return carrier.activation_bits if number.weight_only else number.activation_bits


def _multiplies_in(number: Precision, carrier: str) -> str:
    """The name of the peak: a product of quantized weights with floats runs at the carrier's."""
    if number.weight_only:
        return carrier
    return number.name if number.activations is None else PEAKS[number.activations.dtype]


def _unrolled(costs: Mapping[str, NodeCost]) -> str:
    """A remark where the band cannot hold the truth."""
    found = sorted({cost.op for cost in costs.values()} & _CONTROL)
    return f"; the inside of {', '.join(found)} is not fully counted" if found else ""


def _latency(low: float, high: float, batch: int, note: str) -> Latency:
    """Seconds to the record."""
    return Latency(
        evidence=Evidence.PREDICTED,
        p50_ms=low * 1e3,
        batch=batch,
        throughput=batch / low if low else 0.0,
        band=Interval(low * 1e3, high * 1e3),
        note=note,
    )


def _compute(layer: FusedLayer, costs: Mapping[str, NodeCost], target: Target) -> float:
    """Seconds at the peak; none for a layer that multiplies nothing."""
    if layer.dtype is None:
        return 0.0
    if layer.dtype not in PEAKS:  # as a stranger's report may say
        raise InputRefused(f"no peak is known of {layer.dtype!r}", where=f"layer {layer.name!r}")
    macs = sum(costs[node].macs or 0 for node in layer.products if node in costs)
    return 2 * macs / _peak(target, PEAKS[layer.dtype])


def _layer_bytes(layer: FusedLayer) -> int:
    if layer.bytes_moved is None:
        raise InputRefused("a roofline needs fixed sizes", where=f"layer {layer.name!r}")
    return layer.bytes_moved + layer.constant_bytes


def _peak(target: Target, dtype: str) -> float:
    """Operations per second."""
    peak = target.peak(dtype)
    if peak is None:
        raise ToolchainMissing(f"no peak is known for {dtype}", where=target.name)
    return peak


def _bandwidth(target: Target) -> float:
    if target.bandwidth is None:
        raise ToolchainMissing("no memory bandwidth is known", where=target.name)
    return target.bandwidth
