"""Two-sided 95 % intervals: Wilson, Tango's paired score, seeded bootstrap.

    proportion            Wilson 1927, score interval of one proportion
    paired difference     Tango 1998 (Statistics in Medicine 17:891-908), score interval of the
                          difference of two dependent proportions
    median of latencies   percentile bootstrap over rounds: calls of one round share the state of
                          the host, so they are one observation and not many (cluster bootstrap,
                          Davison & Hinkley 1997, section 3.8)
    anything else         percentile bootstrap (Efron 1979) from one fixed seed

Score intervals keep a width where nothing differs: with no flip among n samples Tango's upper end
is z²/(n + z²), where a bootstrap would say [0, 0].
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt
from statistics import NormalDist

import numpy as np

from optkit.measurement import Interval

Z95 = NormalDist().inv_cdf(0.975)
SEED = 20_251
RESAMPLES = 2_000
_QUANTILES = 64  # of a round that stand for its calls
_BISECTIONS = 60  # halves [-1, 1] below 1e-17


def wilson(successes: float, n: float) -> Interval:
    """Wilson's score interval of a proportion `successes / n`, n > 0."""
    p, z2 = successes / n, Z95**2
    centre = p + z2 / (2 * n)
    half = Z95 * sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    scale = 1 + z2 / n
    return Interval(max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))


def paired_score(lost: float, gained: float, n: float) -> Interval:
    """Tango's score interval of (lost - gained) / n over n pairs.

    `lost`: pairs right in the first and wrong in the second; `gained`: the reverse. Counts may be
    fractional, which a search for a sample size needs. The interval is {Δ : |T(Δ)| ≤ z}; T falls
    monotonically in Δ and is 0 at the observed difference.
    """
    observed = (lost - gained) / n

    def crossing(level: float, inside: float, outside: float) -> float:
        for _ in range(_BISECTIONS):
            middle = (inside + outside) / 2
            if abs(_tango(middle, lost, gained, n)) <= level:
                inside = middle
            else:
                outside = middle
        return inside

    return Interval(crossing(Z95, observed, -1.0), crossing(Z95, observed, 1.0))


def _tango(delta: float, lost: float, gained: float, n: float) -> float:
    """T(Δ): the difference standardised by its variance under p(lost) - p(gained) = Δ.

    The nuisance p(gained) takes its maximum-likelihood value under that constraint, the larger root
    of 2n·p² + b·p + c = 0 (Tango 1998, eq. 13).
    """
    b = -lost - gained + (2 * n - lost + gained) * delta
    c = -gained * delta * (1 - delta)
    root = sqrt(max(b * b - 8 * n * c, 0.0))
    p_gained = -2 * c / (b + root) if b > 0 else (root - b) / (4 * n)  # no cancellation either way
    variance = n * (2 * p_gained + delta * (1 - delta))
    difference = lost - gained - n * delta
    if variance <= 0:
        return 0.0 if difference == 0 else inf if difference > 0 else -inf
    return difference / sqrt(variance)


def median_interval(rounds: np.ndarray) -> Interval | None:
    """Interval of the median of all calls [rounds, calls]; None for a single round."""
    return None if len(rounds) < 2 else percentiles(resampled_medians(rounds))


def resampled_medians(rounds: np.ndarray) -> np.ndarray:
    """Medians [RESAMPLES] of what whole rounds [rounds, calls] give when drawn anew, fixed seed:
    two sessions timed in the same rounds are drawn alike.

    A round of many calls counts by its quantiles, so that the cost does not grow with the calls.
    """
    if rounds.shape[1] > _QUANTILES:
        rounds = np.quantile(rounds, (np.arange(_QUANTILES) + 0.5) / _QUANTILES, axis=1).T
    drawn = np.random.default_rng(SEED).integers(0, len(rounds), (RESAMPLES, len(rounds)))
    return np.asarray([np.median(rounds[chosen]) for chosen in drawn])


def bootstrap(count: int, statistic: Callable[[np.ndarray], float]) -> Interval:
    """Percentile bootstrap: `statistic(indices)` over resamples of `count` units, fixed seed."""
    return percentiles(replicates(count, statistic))


def replicates(count: int, statistic: Callable[[np.ndarray], float]) -> np.ndarray:
    """`statistic(indices)` of each resample [RESAMPLES]. The fixed seed draws two models scored on
    the same units alike, so that their replicates are paired."""
    rng = np.random.default_rng(SEED)
    return np.asarray([statistic(rng.integers(0, count, count)) for _ in range(RESAMPLES)])


def percentiles(draws: np.ndarray) -> Interval:
    """The middle 95 % of bootstrap draws."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(float(low), float(high))
