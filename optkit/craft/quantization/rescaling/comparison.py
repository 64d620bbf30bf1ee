"""By what candidates are compared: sampled rows of an activation, and the number formats in which
nodes multiply it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.placement.block_size import fitting_block
from optkit.craft.quantization.rescaling.groups import RescalingGroup
from optkit.craft.quantization.rescaling.rules import FoldObstacle
from optkit.craft.quantization.rescaling.smoothquant import ActivationSample, Formats
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import NumberFormat, run_time_blocks
from optkit.ground.statistics import Statistics


def comparison(
    group: RescalingGroup,
    statistics: Statistics,
    planned: Mapping[str, PlacementRules],
    block_size: int | None,
    carrier: np.dtype | type,
) -> tuple[ActivationSample, Formats] | FoldObstacle:
    """The sample of the group's value and the formats of its members. `planned`: node → its rules;
    `block_size`: that of the recipe; `carrier`: the dtype of scales."""
    value = statistics.values.get(str(group.value.name))
    if value is None:
        return FoldObstacle("it has no statistics")
    if value.unbounded is not None:
        return FoldObstacle(value.unbounded)
    if value.channels is None or value.rows is None or not value.rows.data.size:
        return FoldObstacle("no rows of it were kept")
    if value.rows.data.shape[1] != group.channels:
        return FoldObstacle("its rows were kept along another axis")
    if not judgeable(group):
        return FoldObstacle("a weight is too large to be judged")
    rules = [planned[str(node.name)] for node in group.members]
    both = zip(group.members, rules, strict=True)
    formats = {_formats(node, own, block_size, carrier) for node, own in both}
    if len(formats) > 1:
        return FoldObstacle("its readers want different formats")
    channels = value.channels
    sample = ActivationSample(value.rows.data, channels.low, channels.high, channels.count)
    return sample, formats.pop()


def judgeable(group: RescalingGroup) -> bool:
    """Whether products with its weights can be computed in float32."""
    return all(scales.scalable(w) for w in group.kernels)


def _formats(
    node: ir.Node, rules: PlacementRules, block_size: int | None, carrier: np.dtype | type
) -> Formats:
    """The formats of the activation and of the weight. MatMulNBits with accuracy level 4 rounds the
    activation itself. `block_size`: that of the recipe."""
    activation = rules.activation
    if rules.nbits_accuracy is None:
        return Formats(activation, rules.weight_of(node.op_type), carrier)
    weight = weight_format(node, rules, block_size)
    if rules.nbits_accuracy == 4:
        activation = run_time_blocks(weight.block_size)
    return Formats(activation, weight, carrier)


def weight_format(node: ir.Node, rules: PlacementRules, block_size: int | None) -> NumberFormat:
    """The format of the weight of a node with weight-only quantization, with its block size."""
    fmt = rules.weight_of(node.op_type)
    if fmt.granularity != "block":
        return fmt
    return replace(fmt, block_size=fitting_block(node, rules, block_size))
