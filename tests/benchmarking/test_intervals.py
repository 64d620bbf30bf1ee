from __future__ import annotations

from itertools import pairwise
from math import comb, isclose, sqrt

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import norm, t

from optkit.craft.benchmarking.dependence import Units, carriers
from optkit.craft.benchmarking.intervals import (
    Z95,
    _length,
    _student,
    bootstrap,
    loss_interval,
    mean_bootstrap,
    mean_interval,
    median_interval,
    paired_score,
    wilson,
)
from optkit.facts.measurement import Interval


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [  # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("lost", "gained", "n", "low", "high"),
    [  # Fagerland, Lydersen & Laake, "Statistical Analysis of Contingency Tables", chapter 8
        (6, 16, 161, -0.1240, -0.0054),  # Cavo et al. 2012
        (1, 7, 21, -0.517, -0.026),  # Bentur et al. 2009
    ],
)
def test_paired_score_gives_the_published_values(
    lost: int, gained: int, n: int, low: float, high: float
) -> None:
    found = paired_score(lost, gained, n)
    digits = 4 if n == 161 else 3
    assert (round(found.low, digits), round(found.high, digits)) == (low, high)


@pytest.mark.parametrize(("n", "percent"), [(360, 1.06), (629, 0.61), (899, 0.43)])
def test_zero_flips_keep_a_width(n: int, percent: float) -> None:
    low, high = paired_score(0, 0, n)
    assert round(100 * high, 2) == percent
    assert high == pytest.approx(Z95**2 / (n + Z95**2), rel=1e-12)
    assert low == pytest.approx(-high, rel=1e-12)


def reference_score_interval(lost: int, gained: int, n: int) -> tuple[float, float]:
    """Tango's interval from its definition: the nuisance found by maximising the likelihood, the
    limits by scipy's root finder. Shares no formula with the code under test."""

    def likelihood(p_gained: float, delta: float) -> float:
        p_lost, same = p_gained + delta, 1 - 2 * p_gained - delta
        terms = ((lost, p_lost), (gained, p_gained), (n - lost - gained, same))
        return -sum(count * np.log(max(p, 1e-300)) for count, p in terms if count)

    def statistic(delta: float) -> float:
        low, high = max(0.0, -delta), (1 - delta) / 2
        p = minimize_scalar(
            likelihood, bounds=(low, high), args=(delta,), method="bounded",
            options={"xatol": 1e-12},
        ).x  # fmt: skip
        variance = (2 * p + delta - delta**2) * n
        return float((lost - gained - n * delta) / np.sqrt(variance))

    z, observed, edge = float(norm.ppf(0.975)), (lost - gained) / n, 1 - 1e-9
    return (
        brentq(lambda d: statistic(d) - z, -edge, observed),
        brentq(lambda d: statistic(d) + z, observed, edge),
    )


@pytest.mark.parametrize(
    ("lost", "gained", "n"),
    [(3, 1, 60), (12, 2, 50), (0, 5, 40), (5, 0, 899), (40, 20, 160), (9, 9, 360), (1, 0, 12)],
)
def test_paired_score_agrees_with_a_maximum_likelihood_reference(
    lost: int, gained: int, n: int
) -> None:
    assert paired_score(lost, gained, n) == pytest.approx(
        reference_score_interval(lost, gained, n), abs=2e-5
    )


counts = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 400))


@given(counts)
def test_paired_score_contains_the_estimate_and_is_antisymmetric(
    case: tuple[int, int, int],
) -> None:
    lost, gained, same = case
    n = lost + gained + same
    low, high = paired_score(lost, gained, n)
    assert -1 <= low <= (lost - gained) / n <= high <= 1
    assert low < high
    mirrored = paired_score(gained, lost, n)
    assert isclose(mirrored.low, -high, abs_tol=1e-12)
    assert isclose(mirrored.high, -low, abs_tol=1e-12)


@given(counts)
def test_more_samples_at_the_same_rates_narrow_the_interval(case: tuple[int, int, int]) -> None:
    lost, gained, same = case
    n = lost + gained + same
    narrow, wide = paired_score(4 * lost, 4 * gained, 4 * n), paired_score(lost, gained, n)
    assert narrow.high - narrow.low < wide.high - wide.low


def test_paired_score_covers_the_truth_at_its_nominal_rate() -> None:
    """Exact coverage over all outcomes of 60 pairs at p(lost) = 0.08, p(gained) = 0.03."""
    n, p_lost, p_gained = 60, 0.08, 0.03
    covered = 0.0
    for lost in range(26):
        for gained in range(20):
            same = n - lost - gained
            ways = comb(n, lost) * comb(n - lost, gained)
            chance = ways * p_lost**lost * p_gained**gained * (1 - p_lost - p_gained) ** same
            low, high = paired_score(lost, gained, n)
            covered += chance * (low <= p_lost - p_gained <= high)
    assert 0.93 <= covered <= 0.98


@pytest.mark.slow
def test_rounds_are_the_units_of_a_median_s_interval() -> None:
    """Calls of one round share the host's state: 40 rounds are 40 observations, not 400."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(100):
        host = rng.lognormal(0, 0.1, (40, 1))
        found = median_interval(host * rng.lognormal(0, 0.02, (40, 10)))
        assert found is not None
        covered += found.low <= 1 <= found.high
    assert covered >= 85  # taking each call for itself covers 53


@given(st.integers(2, 12), st.integers(1, 80), st.integers(0, 9))
@example(12, 1, 0)  # where twice as many rounds in each draw would be seen
@example(9, 3, 1)
@settings(max_examples=20)
def test_median_interval_agrees_with_drawing_whole_rounds(
    count: int, calls: int, seed: int
) -> None:
    rounds = np.random.default_rng(seed).gamma(4.0, size=(count, calls))
    found = median_interval(rounds)
    drawn = np.random.default_rng(1).integers(0, count, (2_000, count))
    medians = np.median(rounds[drawn], axis=(1, 2))
    assert found is not None
    near = 0.02 * float(np.ptp(rounds))  # rounds of many calls count by their quantiles
    for end, share in zip(found, (0.025, 0.975), strict=True):
        # of 2,000 draws: a share of 2.5 % has a standard error of 0.35 %, here on both sides
        low, high = np.quantile(medians, (share - 0.02, share + 0.02))
        assert low - near <= end <= high + near
    assert median_interval(rounds[:1]) is None


def test_bootstrap_of_a_mean_is_near_scipy_s_bca_and_repeatable() -> None:
    values = np.random.default_rng(3).gamma(2.0, size=400)
    found = bootstrap(values.size, lambda drawn: float(values[drawn].mean()))
    expected = scipy_bootstrap(
        (values,), np.mean, method="BCa", n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    width = expected.high - expected.low
    assert found == pytest.approx((expected.low, expected.high), abs=0.08 * width)
    assert found == bootstrap(values.size, lambda drawn: float(values[drawn].mean()))


@pytest.mark.parametrize("freedom", [0.5, 1, 2.5, 8, 200])
def test_few_blocks_widen_an_interval_as_student_s_t(freedom: float) -> None:
    assert _student(0.975, freedom) == pytest.approx(t.ppf(0.975, freedom), rel=1e-9)


def test_an_interval_of_few_blocks_is_about_as_wide_as_student_s_t() -> None:
    """Ten values are three blocks of three: the draws alone end far inside."""
    widths = []
    for seed in range(40):
        values = np.random.default_rng(seed).standard_normal(10)
        low, high = mean_bootstrap(Units.of(values))
        blocks = 10 / 3
        half = t.ppf(0.975, blocks - 1) * values.std() / sqrt(10) * sqrt(blocks / (blocks - 1))
        widths.append((high - low) / (2 * half))
    assert 0.7 < np.median(widths) < 1.3  # where the draws alone end: 0.6


@given(st.integers(20, 200), st.integers(0, 99), st.floats(0.01, 5.0))
@settings(max_examples=30)
def test_tails_only_widen_an_interval(count: int, seed: int, more: float) -> None:
    values = np.random.default_rng(seed).lognormal(0, 2, size=count) - 1
    plain, span = mean_bootstrap(Units.of(values)), float(np.abs(values).max()) * (1 + more)
    units = Units.of(values)
    for found in (mean_interval(units), _lost(values, span)):
        assert found.low <= plain.low <= values.mean() <= plain.high <= found.high
    assert mean_interval(Units.of(values + 7)) == pytest.approx(
        [7 + end for end in mean_interval(Units.of(values))]
    )


def _lost(values: np.ndarray, span: float) -> Interval:
    units = Units.of(values)
    return loss_interval(mean_bootstrap(units), units, span)


@pytest.mark.parametrize("n", [100, 400])
def test_a_loss_that_no_sample_shows_may_still_be_there(n: int) -> None:
    """As for a proportion without a flip: Tango's upper end, z²/(n + z²), of the range of scores;
    nothing like it below, for quantization repairs no sample wholly."""
    losses = np.random.default_rng(1).normal(0, 1e-6, n)
    low, high = _lost(losses, 0.5)
    assert high == pytest.approx(0.5 * paired_score(0, 0, n).high, rel=1e-3)
    assert low > -1e-5


def test_where_few_samples_make_the_variance_a_proportion_s_interval_holds() -> None:
    """Three of 200 lose all, the others next to nothing: as three flips of a proportion."""
    losses = np.random.default_rng(1).normal(0, 1e-9, 200)
    losses[[5, 50, 150]] = 0.8
    assert _lost(losses, 0.8) == pytest.approx(
        [0.8 * end for end in paired_score(3, 0, 200)], rel=1e-4
    )
    assert mean_interval(Units.of(losses)).high >= 0.8 * wilson(3, 200).high - 1e-6


def test_values_are_carried_by_those_that_are_not_zero() -> None:
    values = np.zeros(100)
    values[::10] = 2.5
    assert carriers(values) == pytest.approx(10)
    values[0] = 1000.0
    assert carriers(values) == pytest.approx(1, abs=0.1)
    assert carriers(np.ones(7)) == 7


@pytest.mark.parametrize("count", [50, 200])
def test_blocks_are_longer_where_neighbours_are_more_alike(count: int) -> None:
    rng, plain = np.random.default_rng(0), _length(np.ones(count))
    mixed = rng.standard_normal(count)
    walk = np.convolve(rng.standard_normal(count + 20), np.ones(21), "valid")
    assert _length(mixed) == plain
    assert plain < _length(walk) <= count // 2


@pytest.mark.parametrize("seed", range(6))
def test_the_likeness_of_neighbours_is_corrected_for_its_bias(seed: int) -> None:
    """Kendall 1954: of n values it is too small by (1 + 3r)/n."""
    n = 60
    values = np.convolve(np.random.default_rng(seed).standard_normal(n + 5), np.ones(6), "valid")
    away = values - values.mean()
    r = (away[1:] * away[:-1]).sum() / (away**2).sum()
    r = min(r + (1 + 3 * r) / n, 0.95)
    wanted = 1.6 * np.cbrt(6 * (r / (1 - r**2)) ** 2 * n)
    assert _length(values) == min(round(wanted), n // 2)


@pytest.mark.parametrize("slices", [1, 200, 10_000])
def test_an_interval_of_many_at_once_goes_beyond_the_draws(slices: int) -> None:
    """Bonferroni for 200 slices asks 0.0125 % on a side, and 2,000 draws end at 0.05 %."""
    values, confidence = np.random.default_rng(1).standard_normal(4_000), 1 - 0.05 / slices
    value, half = values.mean(), norm.ppf(0.5 + confidence / 2) * values.std() / sqrt(values.size)
    found = mean_bootstrap(Units.of(values), confidence)
    assert found == pytest.approx((value - half, value + half), abs=0.08 * half)


@given(st.integers(1, 60), st.integers(0, 9))
@settings(max_examples=15)
def test_more_confidence_is_never_narrower(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).lognormal(0, 2, size=count)
    ends = [mean_bootstrap(Units.of(values), 1 - 0.05 / slices) for slices in (1, 10, 100, 1_000)]
    for narrow, wide in pairwise(ends):
        assert wide.low <= narrow.low <= narrow.high <= wide.high


def test_a_bootstrap_sees_that_neighbours_are_alike() -> None:
    """A mean of runs of eight equal values varies as the mean of an eighth as many."""
    values = np.random.default_rng(0).standard_normal(500).repeat(8)
    found = bootstrap(values.size, lambda drawn: float(values[drawn].mean()))
    independent = 2 * Z95 / np.sqrt(values.size)
    assert 2 * independent < found.high - found.low < 3.2 * independent


@given(st.integers(1, 90), st.integers(0, 9))
@settings(max_examples=15)
def test_sums_of_blocks_give_the_same_bootstrap_of_a_mean(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).gamma(2.0, size=count)
    assume(_length(values) == _length(np.ones(count)))
    expected = bootstrap(count, lambda drawn: float(values[drawn].mean()))
    assert mean_bootstrap(Units.of(values)) == pytest.approx(expected)
