"""Accuracy: a task's per-sample scores over a session, and the paired drop between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import sqrt

import numpy as np

from optkit.benchmarking.evidence import weaker
from optkit.benchmarking.intervals import Z95, bootstrap, paired_score, wilson
from optkit.errors import InputRefused
from optkit.measurement import Difference, Interval, Score
from optkit.runtime import Evidence, Feed, Session

ScoreFunction = Callable[[Feed, np.ndarray], np.ndarray]
"""`score(outputs, labels) -> per-sample scores [batch]`, higher is better."""

_SEARCH_LIMIT = 100_000_000  # samples; beyond that "more samples" is no advice


def score(
    session: Session,
    batches: Iterable[tuple[Feed, np.ndarray]],
    score_fn: ScoreFunction,
    *,
    metric: str,
    evidence: Evidence,
) -> Score:
    """Run every batch and score it. The value is the mean of the per-sample scores.

    Raises InputRefused when there is no sample, when the task returns another shape than [batch],
    or a score that is not finite (naming the sample).
    """
    collected: list[np.ndarray] = []
    count = 0
    for feed, labels in batches:
        scores = _scores(score_fn, session.run(feed), labels, first=count)
        collected.append(scores)
        count += scores.size
    if not count:
        raise InputRefused("the evaluation task gave no samples", where=metric)
    return from_samples(np.concatenate(collected), metric=metric, evidence=evidence)


def _scores(
    score_fn: ScoreFunction, outputs: Feed, labels: np.ndarray, *, first: int
) -> np.ndarray:
    try:
        scores = np.asarray(score_fn(outputs, labels), dtype=np.float64)
    except Exception as error:  # the task is the user's code: any failure of it is theirs to read
        raise InputRefused(
            f"the evaluation task's score() raised {type(error).__name__}: {error}",
            where=f"evaluation samples from {first}",
            hint="it takes the outputs by name and the labels, and returns scores, shape [batch]",
        ) from error
    if scores.shape != (len(labels),):
        raise InputRefused(
            f"score() returned shape {list(scores.shape)} for a batch of {len(labels)}",
            where=f"evaluation samples from {first}",
            hint="return one score per sample, shape [batch]",
        )
    if not np.isfinite(scores).all():
        bad = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise InputRefused(
            f"score() returned {scores[bad]}",
            where=f"evaluation sample {first + bad}",
            hint="every score must be a finite number; check this sample and its label",
        )
    return scores


def from_samples(scores: np.ndarray, *, metric: str, evidence: Evidence) -> Score:
    """A Score from per-sample scores [samples]; Wilson's interval where all are 0 or 1."""
    n = scores.size
    proportion = bool(np.isin(scores, (0.0, 1.0)).all())
    interval = (
        wilson(float(scores.sum()), n)
        if proportion
        else bootstrap(n, lambda drawn: float(scores[drawn].mean()))
    )
    return Score(
        evidence, metric, float(scores.mean()), interval, n, proportion, tuple(scores.tolist())
    )


def drop(baseline: Score, candidate: Score) -> Difference:
    """How much worse the candidate scores on the same samples; positive is worse.

    Proportions: the difference, with Tango's paired score interval. Other metrics: the difference
    over |baseline|, with a paired bootstrap over samples (the divisor held fixed). The very same
    object on both sides is a drop of exactly 0.
    """
    evidence = weaker(baseline.evidence, candidate.evidence)
    if candidate is baseline:
        return Difference(0.0, Interval(0.0, 0.0), evidence)
    losses = _losses(baseline, candidate)
    if _proportions(baseline, candidate):
        lost, gained = _flips(losses)
        interval = paired_score(lost, gained, losses.size)
        return Difference((lost - gained) / losses.size, interval, evidence)
    if baseline.value == 0:
        raise InputRefused(
            "the baseline scores 0, so a drop relative to it has no meaning",
            where=baseline.metric,
            hint="check the evaluation task, or score each sample 0 or 1",
        )
    relative = losses / abs(baseline.value)
    return Difference(float(relative.mean()), _relative_interval(baseline, relative), evidence)


def _relative_interval(baseline: Score, relative: np.ndarray) -> Interval:
    if relative.any():
        return bootstrap(relative.size, lambda drawn: float(relative[drawn].mean()))
    # No sample differs: a bootstrap would claim certainty. As for proportions, up to z²/(n + z²)
    # of unseen samples may differ, by at most the range of scores seen.
    share = Z95**2 / (relative.size + Z95**2)
    reach = share * float(np.ptp(baseline.per_sample)) / abs(baseline.value)
    return Interval(-reach, reach)


def samples_to_decide(baseline: Score, candidate: Score, limit: float) -> int | None:
    """The sample size at which the interval of `drop` would clear `limit`, at the observed rates.

    None when the observed drop sits on the limit, so that no size decides.
    """
    losses = _losses(baseline, candidate)
    n = losses.size
    observed = drop(baseline, candidate)

    def interval(size: int) -> Interval:
        if _proportions(baseline, candidate):
            lost, gained = _flips(losses)
            return paired_score(lost * size / n, gained * size / n, size)
        low, high = observed.ci95 or (observed.value, observed.value)
        shrink = sqrt(n / size)
        return Interval(
            observed.value - (observed.value - low) * shrink,
            observed.value + (high - observed.value) * shrink,
        )

    def decided(size: int) -> bool:
        low, high = interval(size)
        return high <= limit or low > limit

    undecided, enough = 0, 1
    while not decided(enough):
        undecided, enough = enough, enough * 2
        if enough > _SEARCH_LIMIT:
            return None
    while enough - undecided > 1:
        middle = (undecided + enough) // 2
        undecided, enough = (undecided, middle) if decided(middle) else (middle, enough)
    return enough


def _losses(baseline: Score, candidate: Score) -> np.ndarray:
    """Baseline minus candidate, per sample. Raises ValueError unless the two can be paired."""
    if baseline.metric != candidate.metric:
        raise ValueError(f"drop between metrics {baseline.metric!r} and {candidate.metric!r}")
    if not baseline.per_sample or len(baseline.per_sample) != len(candidate.per_sample):
        raise ValueError("a paired drop needs the per-sample scores of the same samples")
    losses: np.ndarray = np.asarray(baseline.per_sample) - np.asarray(candidate.per_sample)
    return losses


def _proportions(baseline: Score, candidate: Score) -> bool:
    return baseline.proportion and candidate.proportion


def _flips(losses: np.ndarray) -> tuple[int, int]:
    """(right before and wrong now, wrong before and right now)."""
    return int((losses > 0).sum()), int((losses < 0).sum())
