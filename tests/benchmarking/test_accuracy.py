from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from optkit.craft.benchmarking import metrics
from optkit.craft.benchmarking.accuracy import EvaluationTask, from_samples, value_interval
from optkit.craft.benchmarking.intervals import Z95, paired_score, wilson
from optkit.craft.benchmarking.paired_drop import drop
from optkit.craft.benchmarking.sample_size import samples_to_decide, samples_to_show
from optkit.facts.errors import InputRefused
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Basis, Interval, Score
from optkit.facts.tensors import Feed
from tests.benchmarking.flips import flipped
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
        session(lambda feed: feed),
        batches(),
        EvaluationTask("top1", top1),
        evidence=Evidence.MEASURED,
    )
    assert found.per_sample == (1, 1, 1, 1, 0, 1, 1)
    assert (found.value, found.samples, found.proportion) == (pytest.approx(6 / 7), 7, True)
    assert found.ci95 == wilson(6, 7)
    assert found.evidence is Evidence.MEASURED


def test_what_fills_up_a_fixed_batch_is_not_scored(session: Any) -> None:
    filled = [({"x": feed["x"][np.arange(3) % len(labels)]}, labels) for feed, labels in batches()]
    assert [len(feed["x"]) for feed, _ in filled] == [3, 3, 3]
    found = score(
        session(lambda feed: feed), filled, EvaluationTask("top1", top1), evidence=Evidence.MEASURED
    )
    assert found.per_sample == (1, 1, 1, 1, 0, 1, 1)


def test_a_nan_score_names_its_sample(session: Any) -> None:
    def broken(outputs: Feed, labels: np.ndarray) -> np.ndarray:
        return np.where((labels == 0) & (outputs["x"][:, 2] == 1), np.nan, 1.0)

    with pytest.raises(InputRefused, match="nan") as caught:
        score(
            session(lambda feed: feed),
            batches(),
            EvaluationTask("m", broken),
            evidence=Evidence.MEASURED,
        )
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
        score(
            session(lambda feed: feed),
            batches(),
            EvaluationTask("m", task),
            evidence=Evidence.MEASURED,
        )


def test_no_samples_is_refused(session: Any) -> None:
    with pytest.raises(InputRefused, match="no samples"):
        score(session(lambda feed: feed), [], EvaluationTask("m", top1), evidence=Evidence.MEASURED)


def test_drop_of_proportions_is_tangos_interval_over_the_flips() -> None:
    found = drop(*flipped(5, 3, 400))
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
    # of 500 samples 0.76 % may have been missed, and each may lose its whole score
    worst = quality.max() / quality.mean() * Z95**2 / (500 + Z95**2)
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


def assurance(value: float, error: float, n: int, size: int, ends: Interval, limit: float) -> float:
    """The chance that a new evaluation of `size` samples decides, by drawing it."""
    random = np.random.default_rng(0)
    truth = random.normal(value, error, 400_000)
    seen = random.normal(truth, error * np.sqrt(n / size))
    high, low = seen + ends.high - value, seen + ends.low - value
    return float(((high <= limit) | (low > limit)).mean())


@given(st.integers(0, 8), st.integers(0, 8), st.integers(20, 300), st.floats(0.002, 0.1))
@settings(max_examples=15, deadline=None)
def test_the_advised_size_is_the_fewest_that_is_assured(
    lost: int, gained: int, n: int, limit: float
) -> None:
    pair = flipped(lost, gained, n)
    assume(drop(*pair).basis == Basis("paired score", n, "samples"))
    needed = samples_to_decide(*pair, limit)
    assert needed is not None
    for size, enough in ((needed, True), (needed * 3 // 4, False)):
        ends = paired_score(lost * size / n, gained * size / n, size) if size else None
        if ends is not None:
            error = np.sqrt(lost + gained + 1) / n
            found = assurance((lost - gained) / n, error, n, size, ends, limit)
            assert (found >= 0.92 - 0.003) == enough or needed < 20


def test_other_metrics_shrink_with_the_root_of_the_size() -> None:
    """A metric whose interval is symmetric: the size follows from one equation."""
    rng = np.random.default_rng(2)
    quality = rng.uniform(1, 3, (100, 1))
    pair = [aggregated(rows, lambda rows: float(rows.mean()))
            for rows in (quality, quality + rng.normal(0, 0.3, (100, 1)))]  # fmt: skip
    seen = drop(pair[0], pair[1])
    assert seen.ci95 is not None
    error = (seen.ci95.high - seen.ci95.low) / (2 * Z95)

    def short(ratio: float) -> float:  # of the standard errors of the new and of this evaluation
        half, spread = Z95 * ratio, np.sqrt(1 + ratio**2)
        return float(norm.cdf((1 - half) / spread) + norm.cdf((-1 - half) / spread) - 0.92)

    ratio = brentq(short, 0.01, 1.0)
    needed = samples_to_decide(pair[0], pair[1], seen.value + error)
    assert needed == pytest.approx(100 / ratio**2, rel=0.05)


@pytest.mark.parametrize(
    ("lost", "gained", "n"), [(0.02, 0.02, 200), (0.1, 0.1, 500), (0.035, 0.005, 200)]
)
def test_the_advised_size_decides_fresh_sets(lost: float, gained: float, n: int) -> None:
    random, decided, advised = np.random.default_rng(3), 0, 0

    def drawn(size: int) -> tuple[Score, Score]:
        kind = random.choice(3, size, p=(lost, gained, 1 - lost - gained))
        return measured(kind != 1), measured(kind != 0)

    for _ in range(60):
        pair = drawn(n)
        low, high = drop(*pair).ci95 or (0.0, 0.0)
        if not low <= 0.01 < high:
            continue
        advised += 1
        low, high = drop(*drawn(samples_to_decide(*pair, 0.01) or 1)).ci95 or (0.0, 0.0)
        decided += not low <= 0.01 < high
    assert advised > 10 and decided / advised >= 0.8


def test_a_proportion_shows_a_limit_by_wilson_s_interval() -> None:
    score = measured(np.arange(100) % 10 > 0)
    needed = samples_to_show(score, 0.95)
    error = (score.ci95.high - score.ci95.low) / (2 * Z95)
    assert needed is not None
    for size, enough in ((needed, True), (needed * 3 // 4, False)):
        found = assurance(0.9, error, 100, size, wilson(0.9 * size, size), 0.95)
        assert (found >= 0.92 - 0.003) == enough


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

    task = EvaluationTask("pairs", lambda outputs, labels: labels, combine=pairs)
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
    task = EvaluationTask("m", lambda outputs, labels: np.ones((len(labels), 2)), **hooks)
    with pytest.raises(InputRefused, match=message):
        score(session(lambda feed: feed), batches(), task, evidence=Evidence.MEASURED)


def test_a_resample_on_which_the_metric_is_undefined_counts_as_the_value() -> None:
    """A ratio whose denominator is zero on every tenth resample."""
    rows = np.random.default_rng(4).uniform(2, 3, (60, 1))
    calls = iter(range(10_000))

    def ratio(rows: np.ndarray) -> float:
        return float("nan") if next(calls) % 10 == 9 else float(rows.mean())

    found = aggregated(rows, ratio)
    assert 2 < found.ci95.low < found.value < found.ci95.high < 3


@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_a_value_gate_has_the_confidence_that_is_asked(confidence: float) -> None:
    rows = np.random.default_rng(6).normal(5, 1, (400, 1))
    found = value_interval(aggregated(rows, lambda rows: float(rows.mean())), confidence)
    assert found is not None
    half = norm.ppf(0.5 + confidence / 2) / 20
    assert found.high - found.low == pytest.approx(2 * half, rel=0.15)
