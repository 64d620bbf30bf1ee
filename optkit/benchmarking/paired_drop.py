"""The drop of accuracy from a baseline to a candidate that was scored on the same samples."""

from __future__ import annotations

from math import sqrt
from typing import TypeVar

import numpy as np

from optkit.benchmarking.intervals import (
    CONFIDENCE,
    Z95,
    corrected,
    loss_interval,
    paired_score,
)
from optkit.errors import InputRefused
from optkit.measurement import Difference, Interval, Score

V = TypeVar("V", float, np.ndarray)


def drop(baseline: Score, candidate: Score, confidence: float = CONFIDENCE) -> Difference:
    """How much worse the candidate scores on the same samples; positive is worse.

    Proportions: the difference, with Tango's paired score interval. Other metrics: the difference
    divided by |baseline|, with a paired bootstrap over samples (the divisor stays fixed). If both
    are the same object, the drop is exactly 0.
    """
    evidence = baseline.evidence.weaker(candidate.evidence)
    if candidate is baseline:
        return Difference(0.0, Interval(0.0, 0.0), evidence)
    change = losses(baseline, candidate)
    if proportions(baseline, candidate):
        lost, gained = flips(change)
        interval = paired_score(lost, gained, change.size, confidence)
        return Difference((lost - gained) / change.size, interval, evidence)
    if baseline.value == 0:
        raise InputRefused(
            "the baseline scores 0, so a relative drop is not defined",
            where=baseline.metric,
            hint="check the evaluation task, or score each sample 0 or 1",
        )
    scale = abs(baseline.value)
    value = _worse(baseline, baseline.value, candidate.value) / scale
    interval = (
        _of_aggregates(baseline, change / scale, value, confidence)
        if baseline.replicates
        else loss_interval(change / scale, _range(baseline, candidate) / scale, confidence)
    )
    return Difference(value, interval, evidence)


def _range(*scores: Score) -> float:
    """The range of all scores, which is the largest assumed loss of one sample."""
    return float(np.ptp([score.per_sample for score in scores]))


def _of_aggregates(
    baseline: Score, relative: np.ndarray, value: float, confidence: float
) -> Interval:
    """The interval of losses per resample [RESAMPLES]. If all losses are 0, up to z²/(n + z²) of
    the unseen samples may differ, as for proportions. The effect of one such sample follows from
    the interval of the metric: it is 2·z standard errors wide, so √n times its width is 2·z
    standard deviations."""
    n = baseline.samples
    if relative.any():
        return corrected(relative, value, n, confidence)
    low, high = baseline.ci95
    bound = Z95**2 / (n + Z95**2) * sqrt(n) * (high - low) / abs(baseline.value)
    return Interval(-bound, bound)


def losses(baseline: Score, candidate: Score) -> np.ndarray:
    """The loss of the candidate per sample [samples] or per resample [RESAMPLES]. Raises ValueError
    if the two cannot be paired."""
    if baseline.metric != candidate.metric:
        raise ValueError(f"drop between metrics {baseline.metric!r} and {candidate.metric!r}")
    sides = [np.asarray(score.replicates or score.per_sample) for score in (baseline, candidate)]
    if not sides[0].size or baseline.samples != candidate.samples:
        raise ValueError("a paired drop needs the per-sample scores of the same samples")
    return _worse(baseline, *sides)


def _worse(metric: Score, before: V, after: V) -> V:
    """The change; positive is worse."""
    change: V = after - before if metric.lower_is_better else before - after
    return change


def proportions(baseline: Score, candidate: Score) -> bool:
    """Whether both score each sample 0 or 1."""
    return baseline.proportion and candidate.proportion


def flips(change: np.ndarray) -> tuple[int, int]:
    """Of the losses of proportions: how many samples were right and are wrong, and how many were
    wrong and are right."""
    return int((change > 0).sum()), int((change < 0).sum())
