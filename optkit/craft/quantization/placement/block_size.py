"""Block sizes: the number of elements along the summed axis of a weight that share a scale."""

from __future__ import annotations

import onnx_ir as ir

from optkit.craft.quantization.placement import weighted_nodes
from optkit.facts.placement import PlacementRules

_SMALLEST = 16  # below, scales weigh as much as the codes they are for


def fitting_block(
    node: ir.Node, rules: PlacementRules, block_size: int | None = None
) -> int | None:
    """The block size for the weight of a MatMul or Gemm.

    This is `block_size` (for integers of 2 and 4 bits and NF4; other formats have a fixed one) if
    it divides the summed axis or need not divide it, else the largest smaller size that divides it;
    None if there is none. "halving": the weight must have at least two blocks.
    """
    fmt, length = rules.weight, weighted_nodes.summed(node)
    size = (block_size if fmt.has_free_blocks else None) or fmt.block_size
    assert size is not None
    if rules.blocks == "any":
        return size
    most = length // 2 if rules.blocks == "halving" else length
    sizes = range(min(size, most), _SMALLEST - 1, -1)
    fitting = (size for size in sizes if length % size == 0)
    if rules.blocks == "powers":
        fitting = (size for size in fitting if size & (size - 1) == 0)
    return next(fitting, None)
