"""The time that a layer saves when it is quantized, before anything is compiled. It orders the
layers.

    seconds = operations / peak + bytes / bandwidth          (both sides of the roofline added up)

This is for the layer alone. The latency of a candidate is predicted or measured as a whole.
"""

from __future__ import annotations

from optkit.facts.node_cost import NodeCost
from optkit.facts.precisions import Precision
from optkit.ground.devices import Target

# For one or two CPU cores, FP32; only the ratios matter here.
_CPU_MACS, _CPU_BYTES = 5e10, 1e10
_CPU_INTEGER = 3.0  # ratio of multiply-adds per second on 8-bit integers to those on floats


def gain(
    cost: NodeCost,
    precision: Precision,
    carrier: Precision,
    target: Target,
    *,
    two_term: bool = False,
) -> float:
    """Seconds that a node of the FP32 graph saves against the carrier. `two_term`: its product runs
    twice. Unknown sizes count as zero."""
    return _seconds(cost, carrier, carrier, target, 1) - _seconds(
        cost, precision, carrier, target, 2 if two_term else 1
    )


def _seconds(
    cost: NodeCost, precision: Precision, carrier: Precision, target: Target, terms: int
) -> float:
    stored = precision if precision.quantized else carrier
    size = (
        terms * (cost.in_bytes or 0) * precision.activation_bits
        + (cost.out_bytes or 0) * carrier.activation_bits
        + cost.weight_bytes * stored.weight_bits
    ) / 32
    macs = terms * (cost.macs or 0)
    multiplied = carrier if precision.weight_only else precision
    peak, bandwidth = target.peak(multiplied.name), target.bandwidth
    if peak is None or bandwidth is None:
        peak = 2 * _CPU_MACS * (_CPU_INTEGER if multiplied.quantized else 1.0)
        bandwidth = _CPU_BYTES
    return 2 * macs / peak + size / bandwidth
