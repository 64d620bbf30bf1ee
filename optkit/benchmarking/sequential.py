"""When an evaluation may stop before its last sample: looks at growing parts of it.

A look stops it where the verdict is certain by intervals of 99.9 % instead of 95 % (Haybittle 1971,
Peto et al. 1976). The verdict on all samples stays what it is without looks, and by Bonferroni k
looks add at most k · 0.05 % to the chance that one wrongly passes (2.5 % for one interval). Samples
are drawn at random, for they may stand in an order.
"""

from __future__ import annotations

import numpy as np

CONFIDENCE = 0.999
_FIRST = 256  # samples at the first look; each later one has twice as many
_SEED = 20_252


def segments(samples: int) -> list[tuple[int, int]]:
    """The parts [start, stop) of the drawn order after which it is looked, the last one included;
    none is left with fewer samples than the one before."""
    stops = []
    stop = _FIRST
    while stop * 2 <= samples:
        stops.append(stop)
        stop *= 2
    return list(zip([0, *stops], [*stops, samples], strict=True))


def restoring(samples: int, parts: int) -> np.ndarray:
    """The indices that bring the rows of the first parts into the samples' own order. Each part has
    its rows in that order, but one part comes after another, and a bootstrap over blocks of
    neighbours has to find them side by side."""
    drawn = order(samples)
    numbers = [np.sort(drawn[start:stop]) for start, stop in segments(samples)[:parts]]
    return np.argsort(np.concatenate(numbers))


def order(samples: int) -> np.ndarray:
    """The samples' numbers in the order they are drawn in, the same on every machine."""
    return np.random.default_rng(_SEED).permutation(samples)
