"""Levels of a series of times: where its steady state begins, and how far it drifts.

    x             logarithms of the times, in order
    cost          Σ min((x − median of the segment)², (K·σ)²) / σ²    an outlier is no level
    levels        the segmentation of least cost + 3·ln n for each segment, by dynamic programming;
                  the first and the last are two times or longer: an outlier at an end would be a
                  level for one more segment, which for n ≤ 20 costs less than its K²

Exact search over all segmentations: Jackson et al. 2005 (IEEE Signal Processing Letters 12:105),
which PELT prunes (Killick et al. 2012). Capped cost: Fearnhead & Rigaill 2019 (JASA 114:169). σ
comes from the differences of neighbours, which a shift of the level enters only once. A series is
steady from where it keeps to its last level: Barrett et al. 2017, "Virtual machine warmup blows hot
and cold" (OOPSLA), who show how often a fixed number of warm-up runs is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log

import numpy as np

TOLERANCE = 0.02  # levels as close as this are one: the threshold of Georges et al. 2007 (OOPSLA)
_CAP = 3.0  # K
_PENALTY = 3.0  # times ln n: the modified BIC of Zhang & Siegmund 2007 (Biometrics 63:22-32)
_LEAST_NOISE = 1e-3  # σ of clocks that hardly change, as a share
_MAD_TO_SD = 1.4826  # for normal noise
_LASTING = 0.1  # the smallest share of a series that a level must last to count as drift


@dataclass(frozen=True)
class Level:
    """A part [start, stop) of a series, and the median of its times."""

    start: int
    stop: int
    time: float


def levels(times: np.ndarray) -> list[Level]:
    """The levels of a series of positive times [n], in order. O(n²) medians: for n up to some
    hundred."""
    x = np.log(times)
    n = len(x)
    noise = max(_LEAST_NOISE, _deviation(np.diff(x)) / 2**0.5) if n > 1 else _LEAST_NOISE
    penalty = _PENALTY * log(max(n, 2))
    best = np.full(n + 1, inf)  # for the first i times
    best[0] = 0.0
    begins = np.zeros(n + 1, dtype=int)  # for the last level among them
    for stop in range(1, n + 1):
        for start in range(stop):
            if stop - start == 1 < n and (start == 0 or stop == n):
                continue
            part = x[start:stop]
            off = (part - np.median(part)) / noise
            total = best[start] + float(np.minimum(off * off, _CAP**2).sum()) + penalty
            if total < best[stop]:
                best[stop], begins[stop] = total, start
    segments: list[Level] = []
    stop = n
    while stop:
        start = int(begins[stop])
        segments.append(Level(start, stop, float(np.median(times[start:stop]))))
        stop = start
    return segments[::-1]


def steady_from(times: np.ndarray) -> int:
    """The index from which a series of times [n] stays at its last level."""
    *before, last = levels(times)
    start = last.start
    for level in reversed(before):
        if abs(log(level.time / last.time)) > TOLERANCE:
            break
        start = level.start
    return start


def drift(times: np.ndarray) -> float:
    """The difference between the highest and the lowest lasting level of a series, as a share of
    the lowest; 0 if there is one level. A level of one time does not last."""
    least = max(2, _LASTING * len(times))
    lasting = [level.time for level in levels(times) if level.stop - level.start >= least]
    shift = max(lasting) / min(lasting) - 1 if lasting else 0.0
    return shift if shift > TOLERANCE else 0.0


def _deviation(values: np.ndarray) -> float:
    """A standard deviation that outliers do not change."""
    return _MAD_TO_SD * float(np.median(np.abs(values - np.median(values))))
