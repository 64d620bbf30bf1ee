"""How many samples an evaluation needs until the interval of its figure excludes a limit."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from optkit.benchmarking.intervals import paired_score, wilson
from optkit.benchmarking.paired_drop import drop, flips, losses, proportions
from optkit.measurement import Interval, Score

_SEARCH_LIMIT = 100_000_000  # samples; for larger numbers, "more samples" is no useful advice


def samples_to_decide(baseline: Score, candidate: Score, limit: float) -> int | None:
    """The number of samples at which the interval of `drop` would exclude `limit`, at the observed
    rates.

    None if the observed drop equals the limit, because then no number decides.
    """
    n = baseline.samples
    lost, gained = flips(losses(baseline, candidate))
    observed = drop(baseline, candidate)

    def interval(size: int) -> Interval:
        if proportions(baseline, candidate):
            return paired_score(lost * size / n, gained * size / n, size)
        whole = observed.ci95 or Interval(observed.value, observed.value)
        return _shrunk(observed.value, whole, sqrt(n / size))

    def decided(size: int) -> bool:
        low, high = interval(size)
        return high <= limit or low > limit

    return _fewest(decided)


def samples_to_show(score: Score, limit: float) -> int | None:
    """The number of samples at which the interval of the metric would exclude `limit`."""

    def interval(size: int) -> Interval:
        if score.proportion:
            return wilson(score.value * size, size)
        return _shrunk(score.value, score.ci95, sqrt(score.samples / size))

    def decided(size: int) -> bool:
        low, high = interval(size)
        return not low <= limit <= high

    return _fewest(decided)


def _shrunk(value: float, interval: Interval, share: float) -> Interval:
    return Interval(value - (value - interval.low) * share, value + (interval.high - value) * share)


def _fewest(decided: Callable[[int], bool]) -> int | None:
    undecided, enough = 0, 1
    while not decided(enough):
        undecided, enough = enough, enough * 2
        if enough > _SEARCH_LIMIT:
            return None
    while enough - undecided > 1:
        middle = (undecided + enough) // 2
        undecided, enough = (undecided, middle) if decided(middle) else (middle, enough)
    return enough
