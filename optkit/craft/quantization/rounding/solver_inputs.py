"""What GPTQ learns from: the inputs of a product in the statistics of its value."""

from __future__ import annotations

import numpy as np

from optkit.craft.quantization.rounding.gptq import Rows
from optkit.ground.statistics import Moments, Patches, SampledRows, ValueStatistics

# The damping grows if there are few rows per channel; less than 0.01 fits the sample too closely.
_DAMPING, _DAMPED = 0.02, (0.01, 0.05)


def learned_from(seen: ValueStatistics | Patches | None) -> Moments | SampledRows | None:
    """The inputs of products from which GPTQ learns: the second moments of all of them, or else the
    sampled ones."""
    if seen is None or seen.moments is not None:
        return None if seen is None else seen.moments
    return seen.rows if seen.rows is not None and seen.rows.count else None


def inputs_of(learned: Moments | SampledRows, groups: int = 1) -> list[np.ndarray | Rows]:
    """Of each group of channels: E[xᵀx] of all rows, float64 [K, K], or the sampled rows."""
    if isinstance(learned, Moments):
        second = learned.matrix()
        return list(second.reshape(groups, *second.shape[-2:]))
    return [Rows(x) for x in np.split(learned.data, groups, axis=1)]


def damping(k: int, count: int) -> float:
    """The damping of GPTQ: the fewer rows the second moments are from, the larger."""
    return float(np.clip(_DAMPING * k / count, *_DAMPED))
