"""Levels of synthetic series, whose shifts are known."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.benchmarking.steady import drift, levels, steady_from


def series(seed: int, *stretches: tuple[int, float], noise: float = 0.01) -> np.ndarray:
    """Times around each (length, level) in turn."""
    rng = np.random.default_rng(seed)
    true = np.concatenate([np.full(length, level) for length, level in stretches])
    return true * np.exp(noise * rng.standard_normal(len(true)))


def test_a_warm_up_ends_where_its_last_level_begins() -> None:
    cold = series(0, (1, 9.0), (6, 1.3), (33, 1.0))  # one slow call alone is no level
    assert steady_from(cold) == 7
    assert [(one.start, one.stop) for one in levels(cold)] == [(0, 7), (7, 40)]


def test_noise_alone_is_one_level() -> None:
    found = [len(levels(series(seed, (40, 2.0), noise=0.05))) for seed in range(20)]
    assert sum(count > 1 for count in found) <= 1
    assert levels(np.ones(40))[0].time == 1.0


def test_outliers_make_no_level() -> None:
    times = series(1, (40, 1.0))
    times[[5, 6, 20, 39]] *= 8
    assert len(levels(times)) == 1
    assert (steady_from(times), drift(times)) == (0, 0.0)


@pytest.mark.parametrize("n", [6, 10, 16, 20])
@pytest.mark.parametrize("place", [0, -1])
def test_an_outlier_at_an_end_of_a_short_series_makes_no_level(n: int, place: int) -> None:
    for seed in range(20):
        times = series(seed, (n, 1.0), noise=0.004)
        times[place] *= 1.3
        assert drift(times) == 0.0
        assert steady_from(times) == 0


def test_one_time_alone_does_not_drift() -> None:
    assert drift(np.asarray([1.0, 1.3])) == 0.0


def test_levels_within_the_tolerance_are_one_steady_state() -> None:
    near = series(2, (20, 1.01), (20, 1.0), noise=0.001)
    assert len(levels(near)) == 2
    assert (steady_from(near), drift(near)) == (0, 0.0)


@pytest.mark.parametrize(("share", "told"), [(20, 0.3), (5, 0.3), (2, 0.0)])
def test_drift_is_between_levels_that_last(share: int, told: float) -> None:
    found = drift(series(3, (10, 1.0), (share, 1.3), (30 - share, 1.0)))
    assert found == pytest.approx(told, abs=0.02)


def test_a_slow_trend_has_no_steady_half() -> None:
    assert steady_from(np.linspace(2.0, 1.0, 16)) > 8


def exhaustive(times: np.ndarray) -> float:
    """The least cost over every segmentation there is, by the formula of the module."""
    x = np.log(times)
    steps = np.diff(x)
    noise = max(1e-3, 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / 2**0.5)
    n = len(x)
    costs = []
    for cuts in range(n):
        for places in combinations(range(1, n), cuts):
            parts = np.split(x, places)
            if cuts and min(len(parts[0]), len(parts[-1])) < 2:
                continue
            off = [((part - np.median(part)) / noise) ** 2 for part in parts]
            fit = sum(float(np.minimum(one, 9.0).sum()) for one in off)
            costs.append(fit + 3 * np.log(n) * len(parts))
    return min(costs)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8))
def test_no_other_segmentation_costs_less(times: list[float]) -> None:
    found, given_times = levels(np.asarray(times)), np.asarray(times)
    x = np.log(given_times)
    steps = np.diff(x)
    noise = max(1e-3, 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / 2**0.5)
    assert [one.start for one in found] == [0, *[one.stop for one in found[:-1]]]
    assert found[-1].stop == len(times)
    cost = 0.0
    for one in found:
        part = x[one.start : one.stop]
        cost += float(np.minimum(((part - np.median(part)) / noise) ** 2, 9.0).sum())
    cost += 3 * np.log(len(times)) * len(found)
    assert cost == pytest.approx(exhaustive(given_times))
