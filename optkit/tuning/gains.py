"""What a layer saves when it is quantized, before anything is compiled: which layers come first.

    seconds = operations / peak + bytes / bandwidth          (both sides of the roofline added up)

of the layer alone. It orders layers; what a candidate really takes is read from its compiled layers
or measured.
"""

from __future__ import annotations

from optkit import precisions
from optkit.devices import Target
from optkit.graph import NodeCost

# Of a CPU core or two, FP32: only the ratios matter here.
_CPU_MACS, _CPU_BYTES = 5e10, 1e10
_CPU_INTEGER = 3.0  # times as many multiply-adds on 8-bit integers as on floats


def gain(
    cost: NodeCost, precision: str, carrier: str, target: Target, *, two_term: bool = False
) -> float:
    """Seconds saved against the carrier, of a node of the FP32 graph. `two_term`: its product runs
    twice. Sizes that are not known count as nothing."""
    return _seconds(cost, carrier, carrier, target, 1) - _seconds(
        cost, precision, carrier, target, 2 if two_term else 1
    )


def _seconds(cost: NodeCost, precision: str, carrier: str, target: Target, terms: int) -> float:
    scheme, own = precisions.precision(precision), precisions.precision(carrier)
    size = (
        terms * (cost.in_bytes or 0) * scheme.activation_bits
        + (cost.out_bytes or 0) * own.activation_bits
        + cost.weight_bytes * (scheme.weight_bits if scheme.quantized else own.weight_bits)
    ) / 32
    macs = terms * (cost.macs or 0)
    if scheme.quantized and scheme.activations is None:
        scheme = own  # it multiplies in the carrier
    peak, bandwidth = target.peak(scheme.name), target.bandwidth
    if peak is None or bandwidth is None:
        peak = 2 * _CPU_MACS * (_CPU_INTEGER if scheme.quantized else 1.0)
        bandwidth = _CPU_BYTES
    return 2 * macs / peak + size / bandwidth
