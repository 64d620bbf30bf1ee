"""Two-sided intervals, of 95 % unless said otherwise: Wilson, Tango's paired score, bootstrap.

    proportion            Wilson 1927, score interval of one proportion
    paired difference     Tango 1998 (Statistics in Medicine 17:891-908), score interval of the
                          difference of two dependent proportions
    median of latencies   percentile bootstrap over rounds: calls of one round share the state of
                          the host, so they are one observation and not many (cluster bootstrap,
                          Davison & Hinkley 1997, section 3.8)
    anything else         bootstrap over circular blocks of neighbours (Politis & Romano 1992),
                          for windows of one text are not independent; 1.5·n^(1/3) long (that
                          power: Hall, Horowitz & Jing 1995); BCa ends (Efron 1987), widened for
                          few blocks as by Student's t (Hesterberg 2015)

Score intervals keep a width where nothing differs: with no flip among n samples Tango's upper end
is z²/(n + z²), where a bootstrap would say [0, 0].
"""

from __future__ import annotations

from collections.abc import Callable
from math import cbrt, copysign, inf, sqrt
from statistics import NormalDist

import numpy as np

from optkit.measurement import Interval

_NORMAL = NormalDist()
CONFIDENCE = 0.95
Z95 = _NORMAL.inv_cdf(0.975)
SEED = 20_251
RESAMPLES = 2_000
_FEW_BLOCKS = 5  # the least that say how their sums spread
_QUANTILES = 64  # of a round that stand for its calls
_BISECTIONS = 60  # halves [-1, 1] below 1e-17


def wilson(successes: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of a proportion `successes / n`, n > 0."""
    p, z = successes / n, _NORMAL.inv_cdf(0.5 + confidence / 2)
    z2 = z**2
    centre = p + z2 / (2 * n)
    half = z * sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    scale = 1 + z2 / n
    return Interval(max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))


def paired_score(lost: float, gained: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """Tango's score interval of (lost - gained) / n over n pairs.

    `lost`: pairs right in the first and wrong in the second; `gained`: the reverse. Counts may be
    fractional, which a search for a sample size needs. The interval is {Δ : |T(Δ)| ≤ z}; T falls
    monotonically in Δ and is 0 at the observed difference.
    """
    observed, z = (lost - gained) / n, _NORMAL.inv_cdf(0.5 + confidence / 2)

    def crossing(level: float, inside: float, outside: float) -> float:
        for _ in range(_BISECTIONS):
            middle = (inside + outside) / 2
            if abs(_tango(middle, lost, gained, n)) <= level:
                inside = middle
            else:
                outside = middle
        return inside

    return Interval(crossing(z, observed, -1.0), crossing(z, observed, 1.0))


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


def bootstrap(
    count: int, statistic: Callable[[np.ndarray], float], confidence: float = CONFIDENCE
) -> Interval:
    """Interval of `statistic(indices)` of `count` units in their order, fixed seed."""
    value = statistic(np.arange(count))
    return corrected(replicates(count, statistic), value, count, confidence)


def mean_bootstrap(values: np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """`bootstrap` of the mean of values [count], from sums of whole blocks."""
    count, length = len(values), _block(len(values))
    starts = _starts(count)
    upto = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[:length]]))])
    sums = upto[starts + length] - upto[starts]  # [RESAMPLES, blocks]
    last, left = starts[:, -1], count - length * (starts.shape[1] - 1)
    sums[:, -1] = upto[last + left] - upto[last]
    return corrected(sums.sum(1) / count, float(values.mean()), count, confidence)


def replicates(count: int, statistic: Callable[[np.ndarray], float]) -> np.ndarray:
    """`statistic(indices)` of each resample [RESAMPLES]: blocks of neighbours, the last one next to
    the first. The fixed seed draws two models scored on the same units alike, so that their
    replicates are paired."""
    within = np.arange(_block(count))
    drawn = (((one[:, None] + within) % count).ravel()[:count] for one in _starts(count))
    return np.asarray([statistic(indices) for indices in drawn])


def _starts(count: int) -> np.ndarray:
    """The first units of the blocks of each resample [RESAMPLES, blocks]."""
    blocks = -(-count // _block(count))
    return np.random.default_rng(SEED).integers(0, count, (RESAMPLES, blocks))


def corrected(
    draws: np.ndarray, value: float, count: int, confidence: float = CONFIDENCE
) -> Interval:
    """The interval of a `value` of `count` units from its `replicates` [RESAMPLES].

    BCa: z → z₀ + (z₀ + z) / (1 - a·(z₀ + z)), where z₀ says how far the draws' median is from the
    value and a how their spread grows with it. For a mean both are γ/(6·√n) (Efron 1987, section
    4), so a = z₀ here. z is √(m/(m-1)) times Student's t of m - 1 for m blocks. Where it asks for
    more than all draws, as for many slices at once, the end is as far as from the tenth draw on by
    normal steps of the draws' deviation. Of fewer than five blocks the extreme draws are the ends.
    """
    level = np.isclose(draws, value, rtol=1e-9, atol=0.0)  # whatever order they were summed in
    below = float(((draws < value) & ~level).mean() + level.mean() / 2)
    bias = _NORMAL.inv_cdf(min(max(below, 1 / len(draws)), 1 - 1 / len(draws)))
    blocks = count / _block(count)
    others = max(blocks - 1, 0.1)
    wide = _student(0.5 + confidence / 2, others) * sqrt(blocks / others)
    last, tenth = (_NORMAL.inv_cdf(1 - left / len(draws)) for left in (1, 10))
    spread = float(draws.std())

    def end(z: float) -> float:
        side = copysign(1.0, z)
        slope = max(1 - bias * (bias + z), 0.05)
        asked = bias + (bias + z) / slope
        drawn = float(np.quantile(draws, _NORMAL.cdf(asked)))
        reach = min(abs(asked), abs(z))  # no more than z where slope has ended
        if reach <= last or blocks < _FEW_BLOCKS:
            return drawn
        tail = float(np.quantile(draws, _NORMAL.cdf(side * tenth)))
        return side * max(side * drawn, side * tail + (reach - tenth) * spread)

    return Interval(min(end(-wide), value), max(end(wide), value))


def _block(count: int) -> int:
    return max(1, round(1.5 * cbrt(count)))


def _student(p: float, freedom: float) -> float:
    """Quantile of Student's t by its expansion about the normal's (Abramowitz & Stegun 26.7.5)."""
    z = _NORMAL.inv_cdf(p)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def percentiles(draws: np.ndarray) -> Interval:
    """The middle 95 % of bootstrap draws."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(float(low), float(high))
