"""Block sizes of weight-only schemes: how many numbers along the summed axis share a scale."""

from __future__ import annotations

import onnx_ir as ir

from optkit.quantization import operands
from optkit.runtime import PlacementRules

_SMALLEST = 16  # below, scales weigh as much as the codes they are for


def fitting_block(node: ir.Node, rules: PlacementRules, asked: int | None = None) -> int | None:
    """The block size for a MatMul's or Gemm's weight: the one `asked` for (else the format's own)
    where it divides the summed axis or need not, else the largest smaller one that does; None if
    there is none. "halving": into two blocks or more."""
    wanted, length = asked or rules.weight.block_size, operands.summed(node)
    assert wanted is not None
    if rules.blocks == "any":
        return wanted
    most = length // 2 if rules.blocks == "halving" else length
    sizes = range(min(wanted, most), _SMALLEST - 1, -1)
    fitting = (size for size in sizes if length % size == 0)
    if rules.blocks == "powers":
        fitting = (size for size in fitting if size & (size - 1) == 0)
    return next(fitting, None)
