from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.benchmarking import metrics
from optkit.benchmarking.accuracy import Task, from_samples
from optkit.benchmarking.intervals import Z95, paired_score, wilson
from optkit.benchmarking.paired_drop import drop
from optkit.benchmarking.sample_size import samples_to_decide, samples_to_show
from optkit.errors import InputRefused
from optkit.evidence import Evidence
from optkit.measurement import Score
from optkit.tensors import Feed
from tests.scoring import score

LABELS = np.array([0, 1, 2, 1, 0, 2, 2])


def batches(size: int = 3) -> Any:
    """One-hot logits that are right but for sample 4."""
    guesses = LABELS.copy()
    guesses[4] = 2
    for start in range(0, len(LABELS), size):
        part = slice(start, start + size)
        yield {"x": np.eye(3, dtype=np.float32)[guesses[part]]}, LABELS[part]


def top1(outputs: Feed, labels: np.ndarray) -> np.ndarray:
    return outputs["x"].argmax(1) == labels


def measured(scores: Any) -> Score:
    return from_samples(np.asarray(scores, dtype=float), metric="top1", evidence=Evidence.SIMULATED)


def test_score_collects_every_sample(session: Any) -> None:
    found = score(
        session(lambda feed: feed), batches(), Task("top1", top1), evidence=Evidence.MEASURED
    )
    assert found.per_sample == (1, 1, 1, 1, 0, 1, 1)
    assert (found.value, found.samples, found.proportion) == (pytest.approx(6 / 7), 7, True)
    assert found.ci95 == wilson(6, 7)
    assert found.evidence is Evidence.MEASURED


def test_what_fills_up_a_fixed_batch_is_not_scored(session: Any) -> None:
    filled = [({"x": feed["x"][np.arange(3) % len(labels)]}, labels) for feed, labels in batches()]
    assert [len(feed["x"]) for feed, _ in filled] == [3, 3, 3]
    found = score(
        session(lambda feed: feed), filled, Task("top1", top1), evidence=Evidence.MEASURED
    )
    assert found.per_sample == (1, 1, 1, 1, 0, 1, 1)


def test_a_nan_score_names_its_sample(session: Any) -> None:
    def broken(outputs: Feed, labels: np.ndarray) -> np.ndarray:
        return np.where((labels == 0) & (outputs["x"][:, 2] == 1), np.nan, 1.0)

    with pytest.raises(InputRefused, match="nan") as caught:
        score(session(lambda feed: feed), batches(), Task("m", broken), evidence=Evidence.MEASURED)
    assert caught.value.where == "evaluation sample 4"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (lambda outputs, labels: 0.5, r"shape \[\] for a batch of 3"),
        (lambda outputs, labels: np.ones((3, 1)), r"shape \[3, 1\] for a batch of 3"),
        (lambda outputs, labels: np.ones(2), r"shape \[2\] for a batch of 3"),
        (lambda outputs, labels: outputs["logits"], "KeyError: 'logits'"),
    ],
)
def test_a_broken_task_is_refused(session: Any, task: Any, message: str) -> None:
    with pytest.raises(InputRefused, match=message):
        score(session(lambda feed: feed), batches(), Task("m", task), evidence=Evidence.MEASURED)


def test_no_samples_is_refused(session: Any) -> None:
    with pytest.raises(InputRefused, match="no samples"):
        score(session(lambda feed: feed), [], Task("m", top1), evidence=Evidence.MEASURED)


def test_drop_of_proportions_is_tangos_interval_over_the_flips() -> None:
    baseline, candidate = np.ones(400), np.ones(400)
    baseline[:3] = 0  # three gained
    candidate[10:15] = 0  # five lost
    found = drop(measured(baseline), measured(candidate))
    assert found.value == pytest.approx(2 / 400)
    assert found.ci95 == paired_score(5, 3, 400)
    assert found.evidence is Evidence.SIMULATED


def test_drop_of_other_metrics_is_relative_and_paired() -> None:
    rng = np.random.default_rng(5)
    quality = rng.uniform(10, 90, 500)  # samples differ far more than the two models do
    found = drop(measured(quality), measured(quality * 0.98 + rng.normal(0, 0.1, 500)))
    assert found.value == pytest.approx(0.02, abs=1e-3)
    assert found.ci95 is not None
    assert found.ci95.low < found.value < found.ci95.high
    assert found.value - found.ci95.low < 0.001
    # of 500 samples 0.76 % may have been missed, and each may lose the whole range of scores
    worst = np.ptp(quality) / quality.mean() * Z95**2 / (500 + Z95**2)
    assert found.ci95.high == pytest.approx(found.value + worst, rel=0.02)


@pytest.mark.slow
def test_the_paired_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(30):
        quality = rng.uniform(1, 3, 80)
        worse = quality - 0.1 + rng.normal(0, 0.2, 80)
        low, high = drop(measured(quality), measured(worse)).ci95 or (0.0, 0.0)
        covered += low * quality.mean() <= 0.1 <= high * quality.mean()
    assert covered >= 25  # 95 % of 30 is 28.5


def test_a_metric_whose_samples_all_agree_keeps_a_width() -> None:
    same = [0.0, 0.5, 1.0, 0.5] * 25
    found = drop(measured(same), measured(list(same)))
    assert found.value == 0
    assert found.ci95 is not None
    assert found.ci95.high == pytest.approx(2 * paired_score(0, 0, 100).high)  # over a mean of ½


def test_a_model_against_itself_drops_by_exactly_nothing() -> None:
    same = measured([1, 0, 1])
    assert drop(same, same).ci95 == (0.0, 0.0)


def test_a_baseline_of_zero_has_no_relative_drop() -> None:
    with pytest.raises(InputRefused, match="not defined"):
        drop(measured([-0.5, 0.5]), measured([0.25, 0.5]))


def test_scores_of_other_samples_or_metrics_cannot_be_paired() -> None:
    other = from_samples(np.ones(2), metric="f1", evidence=Evidence.SIMULATED)
    with pytest.raises(ValueError, match="metrics 'top1' and 'f1'"):
        drop(measured([1, 1]), other)
    with pytest.raises(ValueError, match="same samples"):
        drop(measured([1, 1]), measured([1, 1, 0]))


def flipped(lost: int, gained: int, n: int) -> tuple[Score, Score]:
    baseline, candidate = np.ones(n), np.ones(n)
    candidate[:lost] = 0
    baseline[lost : lost + gained] = 0
    return measured(baseline), measured(candidate)


@given(st.integers(0, 8), st.integers(0, 8), st.integers(20, 300), st.floats(0.002, 0.1))
def test_the_advised_size_decides_and_one_less_does_not(
    lost: int, gained: int, n: int, limit: float
) -> None:
    pair = flipped(lost, gained, n)
    needed = samples_to_decide(*pair, limit)
    if needed is None:
        assert (lost - gained) / n == pytest.approx(limit, rel=0.02)
        return

    def decided(size: int) -> bool:
        low, high = paired_score(lost * size / n, gained * size / n, size)
        return high <= limit or low > limit

    assert decided(needed)
    assert needed == 1 or not decided(needed - 1)


def test_zero_flips_need_z_squared_over_the_limit() -> None:
    assert samples_to_decide(*flipped(0, 0, 100), 0.01) == 381
    assert samples_to_decide(*flipped(2, 0, 200), 0.01) is None  # exactly on the limit


@pytest.mark.parametrize(
    ("right", "n", "limit", "needed"),
    [
        (100, 100, 0.99, 381),  # z² · L · (1 - L) / (p - L)²: none was wrong
        (90, 100, 0.85, 196),
        (90, 100, 0.95, 73),
        (90, 100, 0.9, None),
    ],
)
def test_a_proportion_shows_a_limit_by_wilson_s_interval(
    right: int, n: int, limit: float, needed: int | None
) -> None:
    score = measured((np.arange(n) < right).astype(float))
    assert samples_to_show(score, limit) == needed


def test_other_metrics_shrink_with_the_root_of_the_size() -> None:
    rng = np.random.default_rng(2)
    quality = rng.uniform(1, 3, 100)
    pair = measured(quality), measured(quality + rng.normal(0, 0.3, 100))
    seen = drop(*pair)
    assert seen.ci95 is not None
    limit = seen.value + (seen.ci95.high - seen.value) / 3
    assert samples_to_decide(*pair, limit) == pytest.approx(900, abs=2)


def aggregated(rows: np.ndarray, aggregate: Any, **more: Any) -> Score:
    return from_samples(rows, metric="m", evidence=Evidence.SIMULATED, aggregate=aggregate, **more)


def test_an_aggregate_is_computed_again_for_every_resample(session: Any) -> None:
    """Of rows whose aggregate is a mean, value, interval and drop are those of the mean."""
    random = np.random.default_rng(7)
    before, after = random.uniform(1, 3, (2, 60, 1))
    sides = [aggregated(rows, lambda rows: float(rows.mean())) for rows in (before, after)]
    plain = [measured(rows[:, 0]) for rows in (before, after)]
    for one, other in zip(sides, plain, strict=True):
        assert (one.value, one.samples, one.proportion) == (other.value, 60, False)
        assert one.ci95 == pytest.approx(other.ci95) and one.per_sample == ()
    assert drop(*sides).value == pytest.approx(drop(*plain).value)
    assert drop(*sides).ci95 == pytest.approx(drop(*plain).ci95)
    assert samples_to_decide(*sides, 0.5) == samples_to_decide(*plain, 0.5)


def test_of_what_is_better_lower_a_rise_is_a_drop() -> None:
    random = np.random.default_rng(8)
    nats = np.stack([random.uniform(40, 60, 200), np.full(200, 16)], axis=1)
    worse = nats + [[0.2, 0]] + random.normal(0, 0.05, (200, 2)) * [1, 0]
    base, candidate = (
        aggregated(r, metrics.perplexity, lower_is_better=True) for r in (nats, worse)
    )
    found = drop(base, candidate)
    assert found.value == pytest.approx(np.exp(0.2 / 16) - 1, rel=0.05)
    assert found.ci95 is not None and 0 < found.ci95.low < found.value < found.ci95.high
    assert drop(candidate, base).value < 0
    rate = from_samples(
        np.array([0.0, 0, 1, 0]), metric="e", evidence=Evidence.MEASURED, lower_is_better=True
    )
    more = from_samples(
        np.array([0.0, 1, 1, 0]), metric="e", evidence=Evidence.MEASURED, lower_is_better=True
    )
    assert drop(rate, more).value == 0.25


@pytest.mark.slow
def test_the_interval_of_an_aggregate_covers_the_truth_about_as_often_as_it_says() -> None:
    """Spearman's correlation of a bivariate normal, known in closed form."""
    random = np.random.default_rng(9)
    truth = 6 / np.pi * np.arcsin(0.7 / 2)
    covered = 0
    for _ in range(30):
        a, noise = random.standard_normal((2, 100))
        rows = np.stack([a, 0.7 * a + np.sqrt(1 - 0.49) * noise], axis=1)
        low, high = aggregated(rows, lambda rows: metrics.spearman(*rows.T)).ci95
        covered += low <= truth <= high
    assert covered >= 25


def test_an_aggregate_that_agrees_keeps_a_width() -> None:
    rows = np.random.default_rng(10).uniform(0, 1, (100, 1))
    base, same = (aggregated(rows, lambda rows: float(rows.mean())) for _ in range(2))
    found = drop(base, same)
    assert found.value == 0 and found.ci95 is not None
    mean = drop(measured(rows[:, 0]), measured(rows[:, 0].copy()))
    assert mean.ci95 is not None
    assert found.ci95.high == pytest.approx(mean.ci95.high, rel=0.3)


def test_units_are_what_combine_makes_of_the_samples(session: Any) -> None:
    def pairs(rows: np.ndarray) -> np.ndarray:
        return (rows[0:6:2] == rows[1:6:2]).astype(float)

    task = Task("pairs", lambda outputs, labels: labels, combine=pairs)
    found = score(session(lambda feed: feed), batches(2), task, evidence=Evidence.MEASURED)
    assert found.per_sample == (0, 0, 0) and found.samples == 3


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ({"aggregate": lambda rows: rows[:, 0]}, r"aggregate\(\) returned"),
        ({"aggregate": lambda rows: float("nan")}, r"aggregate\(\) returned"),
        ({"aggregate": lambda rows: 1 / 0}, r"aggregate\(\) raised ZeroDivisionError"),
        ({"combine": lambda rows: rows["x"]}, r"combine\(\) raised"),
        ({"agreement": lambda rows, before: rows @ before}, r"agreement\(\) raised ValueError"),
        ({"run": lambda session, feed: feed["none"]}, r"run\(\) raised KeyError"),
    ],
)
def test_a_broken_hook_is_refused(session: Any, hooks: Any, message: str) -> None:
    task = Task("m", lambda outputs, labels: np.ones((len(labels), 2)), **hooks)
    with pytest.raises(InputRefused, match=message):
        score(session(lambda feed: feed), batches(), task, evidence=Evidence.MEASURED)
