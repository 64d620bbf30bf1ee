"""Where pairs go, as variants of the backend's own rules that the compiler is asked about.

A compiler decides by placement and granularity what it fuses: a quantized shortcut fuses the sum,
one scale per convolution fuses bias and activation where one per channel makes it write FP32 in
between. Which is faster depends on the model, so the search compiles them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from optkit.pipeline import Build
from optkit.recipe import Placement

VARIANTS: Mapping[str, Placement] = MappingProxyType(
    {
        "float-shortcuts": Placement(residual_adds=False),
        "conv-per-tensor": Placement(tensor_ops=("Conv",)),
        "per-channel": Placement(split_scale=()),
    }
)


def placements_of(build: Build, ops: Collection[str]) -> dict[str, Placement]:
    """The variants that mean something for a model with these quantized operators: all of them
    place pairs around convolutions. Where the target is this machine the backend's own stands."""
    if build.measured or build.job.precision.activations is None or "Conv" not in ops:
        return {}
    return dict(VARIANTS)
