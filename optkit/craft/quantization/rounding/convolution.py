"""Convolutions as matrix products, so that kernels are solved like weights [K, N].

    y = P W + b        P [positions, K] patches of the input (`statistics.windows`), W [K, O]

in each group (im2col; Frantar and Alistarh 2022, "Optimal Brain Compression", arXiv:2208.11580,
section 4, solve convolutions in this form). The moments Pᵀ P contain the correlation of
neighbouring pixels, which compensates more of the rounding error than channels alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.numerics.scales import Scale
from optkit.craft.quantization.rounding.gptq import Rows, gptq
from optkit.facts.precisions import NumberFormat


def matrices(kernel: np.ndarray, groups: int) -> np.ndarray:
    """A kernel [O, C / groups, *taps] as [groups, K, O / groups], a view."""
    return kernel.reshape(groups, kernel.shape[0] // groups, -1).swapaxes(1, 2)


def solve(
    kernel: np.ndarray,
    scale: Scale,
    fmt: NumberFormat,
    inputs: Sequence[np.ndarray | Rows],
    damping: float,
) -> np.ndarray:
    """Codes of a kernel [O, C / groups, *taps] under its scale ([] or [O]), by GPTQ, group by
    group.

    inputs: of each group patches, or E[pᵀ p] of them, [K, K]. damping: as in `gptq`. There are no
    sweeps of coordinate descent: they would gain 0.1 dB and double the time.

    Raises InputRefused if inputs or kernel are not finite.
    """
    groups = len(inputs)
    each = len(kernel) // groups
    codes = []
    for index, (w, second) in enumerate(zip(matrices(kernel, groups), inputs, strict=True)):
        own_scale = _of_channels(scale, slice(index * each, (index + 1) * each))
        (solved,) = gptq([w], second, fmt, np.float32, scales=[own_scale], damping=damping)
        codes.append(solved.codes.T)
    return np.concatenate(codes).reshape(kernel.shape)


def dequantized(codes: np.ndarray, scale: Scale, fmt: NumberFormat, groups: int) -> np.ndarray:
    """float32 [groups, K, O / groups] of the codes of a kernel."""
    axis = 0 if scale.scale.ndim else None
    return matrices(scales.dequantize(codes, scale, axis, fmt), groups)


def _of_channels(scale: Scale, channels: slice) -> Scale:
    if not scale.scale.ndim:
        return scale
    return scale._replace(scale=scale.scale[channels], zero_point=scale.zero_point[channels])
