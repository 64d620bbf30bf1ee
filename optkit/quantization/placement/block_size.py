"""Block sizes: how many numbers along the summed axis of a weight share a scale."""

from __future__ import annotations

import onnx_ir as ir

from optkit.placement import PlacementRules
from optkit.quantization.placement import weighted_nodes as operands

_CHOSEN = ("int4", "uint4", "nf4")  # codes whose block size one may ask for
_SMALLEST = 16  # below, scales weigh as much as the codes they are for


def fitting_block(node: ir.Node, rules: PlacementRules, asked: int | None = None) -> int | None:
    """The block size for a MatMul's or Gemm's weight: the one `asked` for (of 4-bit
    integers and NF4; else the format's own) where it divides the summed axis or need not, else the
    largest smaller one that does; None if there is none. "halving": into two blocks or more."""
    own, length = rules.weight, operands.summed(node)
    wanted = (asked if own.dtype in _CHOSEN else None) or own.block_size
    assert wanted is not None
    if rules.blocks == "any":
        return wanted
    most = length // 2 if rules.blocks == "halving" else length
    sizes = range(min(wanted, most), _SMALLEST - 1, -1)
    fitting = (size for size in sizes if length % size == 0)
    if rules.blocks == "powers":
        fitting = (size for size in fitting if size & (size - 1) == 0)
    return next(fitting, None)
