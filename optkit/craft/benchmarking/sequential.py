"""When an evaluation may stop before its last sample: it checks the gates on growing parts of the
samples.

A check (a look) ends the evaluation if the verdict is certain by intervals of 99.9 % instead of 95
% (Haybittle 1971, Peto et al. 1976). If no look ends it, the verdict on all samples is the same as
without looks. By Bonferroni, k looks add at most k · 0.05 % to the chance of a wrong pass (2.5 %
for one interval). The samples are in random order, because they may be sorted in the data.
"""

from __future__ import annotations

import numpy as np

CONFIDENCE = 0.999
_FIRST = 256  # samples at the first look; each later look has twice as many
_SEED = 20_252


def segments(samples: int) -> list[tuple[int, int]]:
    """The parts [start, stop) of the random order. After each part, the last one included, there is
    a look. No part has fewer samples than the one before."""
    stops = []
    stop = _FIRST
    while stop * 2 <= samples:
        stops.append(stop)
        stop *= 2
    return list(zip([0, *stops], [*stops, samples], strict=True))


def restoring(samples: int, parts: int) -> np.ndarray:
    """The indices that bring the rows of the first parts into the order of the samples. Each part
    has its rows in this order, but the parts follow each other, and a bootstrap over blocks of
    neighbours needs neighbouring samples next to each other."""
    drawn = order(samples)
    numbers = [np.sort(drawn[start:stop]) for start, stop in segments(samples)[:parts]]
    return np.argsort(np.concatenate(numbers))


def order(samples: int) -> np.ndarray:
    """The numbers of the samples in random order, which is the same on every machine."""
    return np.random.default_rng(_SEED).permutation(samples)
