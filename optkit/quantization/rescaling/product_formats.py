"""The number formats in which a node multiplies, for the comparison of factors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from optkit.placement import PlacementRules
from optkit.precisions import NumberFormat
from optkit.quantization.numerics import run_time_blocks
from optkit.quantization.placement.block_size import fitting_block
from optkit.quantization.rescaling.smoothquant import Formats


def product_formats(
    node: ir.Node, rules: PlacementRules, block_size: int | None, carrier: np.dtype | type
) -> Formats:
    """The formats of the activation and of the weight. MatMulNBits with accuracy level 4 rounds the
    activation itself. `block_size`: that of the recipe."""
    activation = rules.activation
    if rules.nbits_accuracy is None:
        return Formats(activation, rules.weight_of(node.op_type), carrier)
    weight = weight_format(node, rules, block_size)
    if rules.nbits_accuracy == 4:
        activation = run_time_blocks.activation(weight)
    return Formats(activation, weight, carrier)


def weight_format(node: ir.Node, rules: PlacementRules, block_size: int | None) -> NumberFormat:
    """The format of the weight of a node with weight-only quantization, with its block size."""
    fmt = rules.weight_of(node.op_type)
    if fmt.granularity != "block":
        return fmt
    return replace(fmt, block_size=fitting_block(node, rules, block_size))
