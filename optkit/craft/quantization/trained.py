"""Scales of a quantization-aware training in the place of computed ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optkit.craft.quantization.numerics import format_codes
from optkit.craft.quantization.numerics.scales import Scale
from optkit.craft.quantization.placement.read_weight import ReadWeight
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import NumberFormat
from optkit.ground.trained_scales import TrainedActivation, TrainedScales


def trained_activation(trained: TrainedActivation, fmt: NumberFormat) -> Scale:
    """The scale of a value in codes of `fmt`. Raises InputRefused for a zero point that is no
    code."""
    if not (
        fmt.qmin <= trained.zero_point <= fmt.qmax if fmt.is_integer else not trained.zero_point
    ):
        raise InputRefused(
            f"its trained zero point {trained.zero_point} is no code of {fmt.dtype}",
            hint="export the model again with optkit.qat",
        )
    zero_point = np.array(trained.zero_point, format_codes.storage(fmt))
    return Scale(np.array(trained.scale, np.float32), zero_point, 0)


def trained_weights(
    read: Sequence[ReadWeight], trained: TrainedScales
) -> tuple[Scale, list[tuple[ReadWeight, np.ndarray | None]]]:
    """The common scale of the weights that multiply one value; and each weight with the scale of
    its codes and the ratios of its channels. The scales of blocks are by channels in the training,
    and by columns here. Raises InputRefused as `TrainedScales` does."""
    common = Scale(np.ones((), np.float32), np.zeros((), np.int8), 0)
    parts: list[tuple[ReadWeight, np.ndarray | None]] = []
    for weight in read:
        given = trained.weight(str(weight.node.name), weight.scale.scale.T.shape)
        scale = given.numbers.T
        if (scale < 0).any() and not weight.format.signed_scale:
            raise InputRefused(
                "a trained scale is negative",
                where=f"node {weight.node.name!r}",
                hint="export the model again with optkit.qat",
            )
        ratio = None if given.ratio is None else np.asarray(given.ratio, np.float32)
        if ratio is not None:
            common = common._replace(scale=scale)
            scale = scale * ratio
        parts.append((weight._replace(scale=weight.scale._replace(scale=scale)), ratio))
    return common, parts
