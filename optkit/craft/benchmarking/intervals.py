"""Two-sided intervals, of 95 % unless said otherwise: Wilson, Tango's paired score, bootstrap.

    proportion            Wilson 1927, score interval of one proportion
    paired difference     Tango 1998 (Statistics in Medicine 17:891-908), score interval of the
                          difference of two dependent proportions
    median of latencies   percentile bootstrap over rounds: calls of one round share the state of
                          the host, so they are one observation and not many (cluster bootstrap,
                          Davison & Hinkley 1997, section 3.8)
    anything else         bootstrap over circular blocks of neighbours (Politis & Romano 1992),
                          for windows of one text are not independent; 1.5·n^(1/3) long (that
                          power: Hall, Horowitz & Jing 1995), longer where neighbours are more
                          alike; BCa ends (Efron 1987), widened for few blocks as by Student's t
                          (Hesterberg 2015)
    mean of few or rare   the bootstrap, and at least what samples that were not drawn may add
    large scores          (`mean_interval`, `loss_interval`)

Score intervals keep a width where nothing differs: with no flip among n samples Tango's upper end
is z²/(n + z²), where a bootstrap would say [0, 0].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cbrt, copysign, inf, sqrt
from statistics import NormalDist

import numpy as np

from optkit.craft.benchmarking.dependence import (
    HEAVY,
    Units,
    carriers,
    in_variance,
    members_of,
    worth,
)
from optkit.facts.measurement import Interval

_NORMAL = NormalDist()
CONFIDENCE = 0.95
Z95 = _NORMAL.inv_cdf(0.975)
SEED = 20_251
RESAMPLES = 2_000
_LONGER = 1.6  # a block is longer than the one with the least error by this factor: see `_length`
# how much more than the largest of few losses one may be that was not drawn: see `loss_interval`
_BEYOND = 10.0
_QUANTILES = 64  # quantiles of a round that represent its calls
_BISECTIONS = 60  # halving [-1, 1] this often gives an interval below 1e-17


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

    `lost`: pairs that are right in the first and wrong in the second; `gained`: the reverse. Counts
    may be fractional, because the search for a sample size needs this. The interval is {Δ : |T(Δ)|
    ≤ z}; T falls monotonically in Δ and is 0 at the observed difference.
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
    # avoids cancellation for either sign
    p_gained = -2 * c / (b + root) if b > 0 else (root - b) / (4 * n)
    variance = n * (2 * p_gained + delta * (1 - delta))
    difference = lost - gained - n * delta
    if variance <= 0:
        return 0.0 if difference == 0 else inf if difference > 0 else -inf
    return difference / sqrt(variance)


def median_interval(rounds: np.ndarray) -> Interval | None:
    """Interval of the median of all calls [rounds, calls]; None for a single round."""
    return None if len(rounds) < 2 else percentiles(resampled_medians(rounds))


def resampled_medians(rounds: np.ndarray) -> np.ndarray:
    """Medians [RESAMPLES] of resamples of whole rounds [rounds, calls]. The seed is fixed, so two
    sessions that were timed in the same rounds get the same resamples.

    A round of many calls is represented by its quantiles, so that the cost does not grow with the
    calls.
    """
    if rounds.shape[1] > _QUANTILES:
        rounds = np.quantile(rounds, (np.arange(_QUANTILES) + 0.5) / _QUANTILES, axis=1).T
    drawn = np.random.default_rng(SEED).integers(0, len(rounds), (RESAMPLES, len(rounds)))
    return np.asarray([np.median(rounds[chosen]) for chosen in drawn])


def bootstrap(
    count: int, statistic: Callable[[np.ndarray], float], confidence: float = CONFIDENCE
) -> Interval:
    """Interval of `statistic(indices)` of `count` units in their order, with a fixed seed."""
    value = statistic(np.arange(count))
    return corrected(replicates(count, statistic), value, count, confidence)


def mean_interval(units: Units, confidence: float = CONFIDENCE) -> Interval:
    """Interval of the mean of at least one value. It is `mean_bootstrap`, widened for values that
    are too rare in the samples, within the range of the scores."""
    low, span = units.low, units.span
    if span == 0:
        return Interval(low, low)
    mean, missed = units.mean, span * _unseen(units.count, confidence)
    ends = [mean_bootstrap(units, confidence), Interval(mean - missed, mean + missed)]
    if in_variance(units.values) < HEAVY:
        share = wilson((mean - low) / span * units.count, units.count, confidence)
        ends.append(Interval(low + span * share.low, low + span * share.high))
    return _around(ends)


def loss_interval(
    found: Interval,
    losses: Units,
    span: float,
    confidence: float = CONFIDENCE,
    *,
    most: bool = True,
    count: float | None = None,
) -> Interval:
    """Interval of the mean of losses (negative: gains), none larger than `span`: `found`, that of
    the bootstrap, widened as in `mean_interval` by Tango's interval. Samples that were not drawn
    may have lost the whole range. They do not gain the whole range, because quantization does not
    repair samples completely, so the lower end is not widened for such gains.

    `most`: whether no sample can lose more than `span`; if not, it is the range that was seen, and
    the fewer samples the loss hangs on, the more another one may lose. `count`: the number of
    independent losses, if it is not that of these."""
    n, mean, values = count or losses.count, losses.mean, losses.values
    if span == 0:
        return Interval(mean, mean)
    ends = [found]
    if in_variance(values) < HEAVY:
        span *= 1 if most else 1 + _BEYOND / carriers(values)
        lost, gained = (float(np.maximum(one, 0).mean()) / span * n for one in (values, -values))
        share = paired_score(lost, gained, n, confidence)
        ends.append(Interval(span * share.low, span * share.high))
    ends.append(Interval(mean, mean + span * _unseen(n, confidence)))
    return _around(ends)


# A bootstrap cannot draw a value that is not in the samples: of n samples up to `_unseen` may be
# missed. If the variance depends on few samples, the draws underestimate it. A proportion of the
# same mean has the largest variance of all values within the same range (μ·(1 - μ) bounds the
# variance of values within [0, 1]), so the interval is then at least as wide as its score interval.


def _unseen(n: float, confidence: float) -> float:
    """The upper end of the score interval of a share that did not occur among n samples."""
    z2 = _NORMAL.inv_cdf(0.5 + confidence / 2) ** 2
    return z2 / (n + z2)


def shrunk(value: float, ends: Interval, share: float) -> Interval:
    """An interval of `value` whose ends are closer to it, at this share of their distance."""
    return Interval(value - (value - ends.low) * share, value + (ends.high - value) * share)


def _around(ends: list[Interval]) -> Interval:
    return Interval(min(one.low for one in ends), max(one.high for one in ends))


def mean_bootstrap(units: Units, confidence: float = CONFIDENCE) -> Interval:
    """`bootstrap` of the mean, from sums of whole blocks of neighbours. Blocks are longer if
    neighbours are alike; groups are drawn one by one."""
    values = units.values
    count, length = len(values), 1 if units.grouped else _length(values)
    starts = _starts(count, length)
    upto = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[:length]]))])
    sums = upto[starts + length] - upto[starts]  # [RESAMPLES, blocks]
    last, left = starts[:, -1], count - length * (starts.shape[1] - 1)
    sums[:, -1] = upto[last + left] - upto[last]
    blocks = units.count if units.grouped else count / length
    return _ends(sums.sum(1) / count, units.mean, blocks, confidence)


def replicates(
    count: int, statistic: Callable[[np.ndarray], float], groups: Sequence[int] = ()
) -> np.ndarray:
    """`statistic(indices)` of each resample [RESAMPLES]. A resample consists of whole groups, or
    without groups of blocks of neighbours; the last unit is a neighbour of the first. Because the
    seed is fixed, two models that are scored on the same units get the same resamples, so their
    replicates are paired."""
    if len(groups):
        members = members_of(groups)
        chosen = _starts(len(members), 1)
        return np.asarray(
            [statistic(np.concatenate([members[group] for group in one])) for one in chosen]
        )
    within = np.arange(_block(count))
    starts = _starts(count, len(within))
    drawn = (((one[:, None] + within) % count).ravel()[:count] for one in starts)
    return np.asarray([statistic(indices) for indices in drawn])


def _starts(count: int, length: int) -> np.ndarray:
    """The first unit of each block of each resample [RESAMPLES, blocks]."""
    blocks = -(-count // length)
    return np.random.default_rng(SEED).integers(0, count, (RESAMPLES, blocks))


def corrected(
    draws: np.ndarray,
    value: float,
    count: int,
    confidence: float = CONFIDENCE,
    groups: Sequence[int] = (),
) -> Interval:
    """The interval of a `value` of `count` units, or of `groups` of them, from its `replicates`
    [RESAMPLES]."""
    blocks = worth(groups) if len(groups) else count / _block(count)
    return _ends(draws, value, blocks, confidence)


def _ends(draws: np.ndarray, value: float, blocks: float, confidence: float) -> Interval:
    """The ends of the interval from draws [RESAMPLES] of this number of blocks.

    BCa: z → z₀ + (z₀ + z) / (1 - a·(z₀ + z)). z₀ is the distance of the draws' median from the
    value, and a is the growth of their spread with the value. For a mean both are γ/(6·√n) (Efron
    1987, section 4), so a = z₀ here. z is √(m/(m-1)) times Student's t of m - 1 for m blocks. With
    few blocks, or many slices at once, an end may lie beyond all draws. It is then extrapolated
    from the tenth draw, by normal steps with the standard deviation of the draws.
    """
    # independent of the order in which they were summed
    level = np.isclose(draws, value, rtol=1e-9, atol=0.0)
    below = float(((draws < value) & ~level).mean() + level.mean() / 2)
    bias = _NORMAL.inv_cdf(min(max(below, 1 / len(draws)), 1 - 1 / len(draws)))
    others = max(blocks - 1, 0.5)
    wide = _student(0.5 + confidence / 2, others) * sqrt(blocks / others)
    last, tenth = (_NORMAL.inv_cdf(1 - left / len(draws)) for left in (1, 10))
    spread = float(draws.std())

    def end(z: float) -> float:
        side = copysign(1.0, z)
        slope = max(1 - bias * (bias + z), 0.05)
        asked = bias + (bias + z) / slope
        drawn = float(np.quantile(draws, _NORMAL.cdf(asked)))
        reach = min(abs(asked), abs(z))  # at most z where the slope ends
        if reach <= last:
            return drawn
        tail = float(np.quantile(draws, _NORMAL.cdf(side * tenth)))
        return side * max(side * drawn, side * tail + (reach - tenth) * spread)

    return Interval(min(end(-wide), value), max(end(wide), value))


def _block(count: int) -> int:
    return max(1, round(1.5 * cbrt(count)))


def _length(values: np.ndarray) -> int:
    """The length of the blocks of values [count]: `_block`, or longer if neighbours are more alike
    than `_block` assumes.

    With r the correlation of neighbours, (6·r²/(1 - r²)²)^(1/3)·n^(1/3) is the length with the
    least error of the variance (Politis & White 2004, for an autoregression of r). Intervals with
    the right coverage need longer blocks (Sun, Phillips & Jin 2008): with 1.6 times this length,
    experiments/gates/calibration.py stays at 5 %. r is corrected for its bias of -(1 + 3·r)/n
    (Kendall 1954), and taken as 0 up to two of its standard errors.
    """
    count = len(values)
    away = values - values.mean()
    whole = float((away**2).sum())
    if count < 4 or whole == 0:
        return _block(count)
    r = float((away[1:] * away[:-1]).sum()) / whole
    r = min(r + (1 + 3 * r) / count, 0.95)
    alike = _LONGER * cbrt(6 * (r / (1 - r * r)) ** 2 * count) if r > 2 / sqrt(count) else 0.0
    return max(_block(count), min(round(alike), count // 2))


def _student(p: float, freedom: float) -> float:
    """A quantile of Student's t."""
    # the import takes a tenth of a second, and few commands need it
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))


def percentiles(draws: np.ndarray) -> Interval:
    """The middle 95 % of the draws of a bootstrap."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(float(low), float(high))
