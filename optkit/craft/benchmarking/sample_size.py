"""How many samples an evaluation needs until the interval of its figure excludes a limit.

The true figure is not known, only an estimate with an interval. At the advised number, the interval
of a new evaluation excludes the limit in 92 of 100 cases, if the true figure is spread around the
estimate as the interval says (assurance, O'Hagan, Stevens & Campbell 2005):

    figure of a new evaluation    normal around the estimate, with the variance of this evaluation
                                  plus that of the new one
    decided                       its interval, as wide as expected, lies on one side of the limit

At the number at which the interval around the estimate itself just excludes the limit, a new
evaluation decides in half of the cases or less.
"""

from __future__ import annotations

from collections.abc import Callable
from math import hypot, sqrt
from statistics import NormalDist

from optkit.craft.benchmarking.intervals import Z95, shrunk, wilson
from optkit.craft.benchmarking.paired_drop import Losses, drop
from optkit.facts.measurement import Interval, Score

_SEARCH_LIMIT = 100_000_000  # samples; for larger numbers, "more samples" is no useful advice
_ASSURED = 0.92  # so that 8 of 10 decide also where the first estimate misleads
_NORMAL = NormalDist()


def samples_to_decide(baseline: Score, candidate: Score, limit: float) -> int | None:
    """The number of samples at which the interval of `drop` would exclude `limit`; None if no
    realistic number does."""
    if baseline.replicates:
        observed = drop(baseline, candidate)
        whole = observed.ci95 or Interval(observed.value, observed.value)
        return _of_whole(observed.value, whole, limit, baseline.samples)
    lost = Losses.between(baseline, candidate)
    return _fewest(
        lost.units.mean,
        lost.error(),
        limit,
        baseline.samples,
        lambda times: lost.interval(times=times),
    )


def samples_to_show(score: Score, limit: float) -> int | None:
    """The number of samples at which the interval of the metric would exclude `limit`."""
    if not score.proportion or score.groups:
        return _of_whole(score.value, score.ci95, limit, score.samples)
    units = score.samples if score.basis is None else score.basis.units
    error = (score.ci95.high - score.ci95.low) / (2 * Z95)
    return _fewest(
        score.value,
        error,
        limit,
        score.samples,
        lambda times: wilson(score.value * units * times, units * times),
    )


def _of_whole(value: float, ends: Interval, limit: float, samples: int) -> int | None:
    error = (ends.high - ends.low) / (2 * Z95)
    return _fewest(value, error, limit, samples, lambda times: shrunk(value, ends, 1 / sqrt(times)))


def _fewest(
    value: float, error: float, limit: float, samples: int, interval: Callable[[float], Interval]
) -> int | None:
    """`error`: the standard error of `value`; `interval`: the one that is expected of so many times
    as many samples."""

    def assured(size: int) -> bool:
        times = size / samples
        low, high = interval(times)
        spread = hypot(error, error / sqrt(times)) or 1e-300
        kept = _NORMAL.cdf((limit - high) / spread)
        broken = _NORMAL.cdf((low - limit) / spread)
        return kept + broken >= _ASSURED

    undecided, enough = 0, 1
    while not assured(enough):
        undecided, enough = enough, enough * 2
        if enough > _SEARCH_LIMIT:
            return None
    while enough - undecided > 1:
        middle = (undecided + enough) // 2
        undecided, enough = (undecided, middle) if assured(middle) else (middle, enough)
    return enough
