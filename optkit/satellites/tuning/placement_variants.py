"""The placement of Q/DQ pairs: variants of the backend's rules, which the search compiles.

Which layers a compiler fuses depends on placement and granularity. It fuses the sum if the shortcut
is quantized. With one scale per convolution it fuses bias and activation; with one scale per
channel it writes FP32 between them. Which variant is faster depends on the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from optkit.ground.recipe import Placement
from optkit.road.pipeline import Build

VARIANTS: Mapping[str, Placement] = MappingProxyType(
    {
        "float-shortcuts": Placement(residual_adds=False),
        "conv-per-tensor": Placement(tensor_ops=("Conv",)),
        "per-channel": Placement(split_scale=()),
    }
)


def placements_of(build: Build, ops: Collection[str]) -> dict[str, Placement]:
    """The variants that apply to a model with these quantized operators; all of them place pairs
    around convolutions. None if the target is this machine, which uses the backend's rules."""
    if build.measured or build.job.precision.weight_codes_only or "Conv" not in ops:
        return {}
    return dict(VARIANTS)
