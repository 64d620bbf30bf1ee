"""The method for a model whose FP32 graph does not fit in `--memory`, chosen before any work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from optkit.facts.errors import InputRefused
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import Precision

Way = Literal["whole", "layers", "pieces"]
_BYTES = 4  # per parameter, as FP32
_BYTES_TO_CALIBRATE = 12  # per parameter: FP32, the runtime's copy, and second moments
_LEARNED = ("auto", "gptq", "awq")
_DATA_FREE = ("auto", "rtn", "mse")


def way(
    parameters: int,
    limit: int,
    rules: Mapping[Precision, PlacementRules],
    weights: str,
    *,
    sampled: bool,
    where: str,
) -> Way:
    """How the model is quantized: calibrated and decided as one graph ("whole"), GPTQ or AWQ part
    by part ("layers"), or each weight by itself without data ("pieces").

    `rules`: placement rules by precision; `weights`: the recipe's method; `sampled`: there are
    calibration samples, and the method uses them. Raises InputRefused if only "whole" is possible
    and the weights alone exceed the limit.
    """
    if parameters * _BYTES_TO_CALIBRATE <= limit:
        return "whole"
    if all(placement.weights_in_blocks for placement in rules.values()):
        if sampled and weights in _LEARNED:
            return "layers"
        if weights in _DATA_FREE:
            return "pieces"
    if parameters * _BYTES <= limit:
        return "whole"
    raise InputRefused(
        f"{', '.join(map(str, rules))} with weights={weights} runs the whole model, which takes "
        f"{parameters * _BYTES / 2**30:.3g} GiB as FP32; the limit is {limit / 2**30:.3g} GiB",
        where=where,
        hint="raise --memory, or take int4 with quantization.weights gptq or awq (with samples), "
        "mse or rtn, which go through the model layer by layer",
    )


def planned_memory(limit: int) -> int:
    """The limit, rounded down to three binary digits. The key of the step contains it, because the
    result depends on it. The default limit follows the free memory: without rounding, no two runs
    would have the same key."""
    step = 1 << max(limit.bit_length() - 3, 0)
    return limit // step * step
