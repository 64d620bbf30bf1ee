"""How the weight of a quantized node is stored: the axis of its scales, and the SQNR with one scale
per output channel.

    tensor    one scale
    channel   one per output channel, applied once after the sum
    summed    one per index of the summed axis: it cannot be applied after the sum, so no integer
              kernel supports it, and it follows the wrong maxima
    block     one per block along the summed axis
"""

from __future__ import annotations

from math import log10
from typing import Literal, NamedTuple

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.placement import weighted_nodes
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph

Granularity = Literal["tensor", "channel", "summed", "block"]


def granularity(node: ir.Node) -> Granularity | None:
    """The kind of scales of a quantized node's weight; None if it has no DequantizeLinear."""
    value, flipped = node.inputs[1] if len(node.inputs) > 1 else None, False
    producer = None if value is None else value.producer()
    while producer is not None and producer.op_type in ("Transpose", "Cast"):
        flipped ^= producer.op_type == "Transpose"
        value = producer.inputs[0]
        producer = None if value is None else value.producer()
    if producer is None or producer.op_type != "DequantizeLinear":
        return None
    if producer.attributes.get_int("block_size", 0):
        return "block"
    scale = graph.array(producer.inputs[1])
    if scale is None or scale.size == 1:
        return "channel" if _is_scaled_behind(node) else "tensor"
    axis = producer.attributes.get_int("axis", 1) % len(_codes_of(producer))
    along = 1 - axis if flipped else axis
    return "channel" if along == weighted_nodes.channel_axis(node) else "summed"


def by_channel_db(reference: ir.Node, quantized: ir.Node) -> float | None:
    """SQNR in dB of the weight of the reference, rounded to nearest with one symmetric scale per
    output channel, in as many bits as the codes of the quantized node. None for codes other than
    int8."""
    codes, weight = _codes(quantized), graph.constant_weight(reference)
    if codes is None or codes.dtype != np.int8 or weight is None or weight[0] != 1:
        return None
    bits = 8 if codes.size and int(np.abs(codes.astype(np.int16)).max()) > 63 else 7
    fmt = NumberFormat("int8", "channel", symmetric=True, limit_bits=bits)
    w, axis = (
        weighted_nodes.weight(reference).astype(np.float32),
        weighted_nodes.channel_axis(reference),
    )
    scale = scales.weight_scale(w, axis, fmt, np.float32)
    rounded = scales.dequantize(scales.quantize(w, scale, fmt, axis), scale, axis, fmt)
    signal = float(np.square(w, dtype=np.float64).sum())
    noise = float(np.square(w - rounded, dtype=np.float64).sum())
    return 10 * log10(signal / noise) if signal and noise else None


class Use(NamedTuple):
    """How a weight's int8 codes use their range: the largest magnitude over 127, and the share of
    the codes with that magnitude beyond one per output channel. A scale from the maximum of a
    channel gives one code that magnitude: a ninth of a depthwise kernel of 3 x 3."""

    reach: float
    saturated: float


def use_of_codes(node: ir.Node) -> Use | None:
    """None for other codes than int8."""
    codes = _codes(node)
    if codes is None or codes.dtype != np.int8 or not codes.size:
        return None
    sizes = np.abs(codes.astype(np.int16))
    most = int(sizes.max())
    channels = weighted_nodes.weight(node).shape[weighted_nodes.channel_axis(node)]
    return Use(most / 127, max(int((sizes >= most).sum()) - channels, 0) / codes.size)


def _codes_of(pair: ir.Node) -> tuple[int, ...]:
    """The shape of what a DequantizeLinear reads."""
    codes = graph.array(pair.inputs[0])
    assert codes is not None
    return codes.shape


def _codes(node: ir.Node) -> np.ndarray | None:
    """The stored codes, in whatever layout."""
    weight = graph.constant_weight(node)
    return None if weight is None else graph.array(weight[1])


def _is_scaled_behind(node: ir.Node) -> bool:
    """Whether the channels' ratios are multiplied behind the node (`writer`, split_scale)."""
    uses = node.outputs[0].consumers()
    if len(uses) != 1 or uses[0].op_type != "Mul":
        return False
    factors = (graph.array(value) for value in uses[0].inputs)
    return any(factor is not None and factor.size > 1 for factor in factors)
