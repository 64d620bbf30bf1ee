"""The drop of accuracy from a baseline to a candidate that was scored on the same samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Self, TypeVar

import numpy as np

from optkit.craft.benchmarking.dependence import Units, worth
from optkit.craft.benchmarking.intervals import (
    CONFIDENCE,
    Z95,
    corrected,
    loss_interval,
    mean_bootstrap,
    paired_score,
    shrunk,
)
from optkit.facts.errors import InputRefused
from optkit.facts.measurement import Basis, Difference, Interval, Score

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
    if baseline.replicates:
        scale = _scale(baseline)
        value = _worse(baseline, baseline.value, candidate.value) / scale
        interval = _of_aggregates(baseline, losses(baseline, candidate) / scale, value, confidence)
        return Difference(value, interval, evidence, baseline.basis)
    lost = Losses.between(baseline, candidate)
    return Difference(lost.units.mean, lost.interval(confidence), evidence, lost.basis)


@dataclass(frozen=True)
class Losses:
    """What the candidate loses of a mean, per sample or group. `span`: the largest assumed loss of
    one; `most`: none can lose more; `exact`: each sample loses 0 or 1 (or gains 1)."""

    units: Units
    span: float
    most: bool
    exact: bool

    @classmethod
    def between(cls, baseline: Score, candidate: Score) -> Self:
        """The losses of two means: of proportions as they are, of others divided by |baseline|."""
        change, before = losses(baseline, candidate), np.asarray(baseline.per_sample)
        if proportions(baseline, candidate):
            units = Units.of(change, baseline.groups, before)
            return cls(units, 1.0, True, exact=not units.grouped)
        scale = _scale(baseline)
        span, most = _range(baseline, candidate)
        units = Units.of(change / scale, baseline.groups, before)
        return cls(units, span / scale, most, exact=False)

    @property
    def basis(self) -> Basis:
        return self.units.basis("paired score" if self.exact else "bootstrap")

    def interval(self, confidence: float = CONFIDENCE, times: float = 1.0) -> Interval:
        """The interval of the mean; with `times`, the one that is expected of so many times as many
        samples with the same losses."""
        count = self.units.count * times
        if self.exact:
            lost, gained = (share * count for share in self.flips)
            return paired_score(lost, gained, count, confidence)
        found = self._drawn if confidence == CONFIDENCE else mean_bootstrap(self.units, confidence)
        found = shrunk(self.units.mean, found, 1 / sqrt(times))
        return loss_interval(found, self.units, self.span, confidence, most=self.most, count=count)

    @property
    def flips(self) -> tuple[float, float]:
        """The shares of samples that lose and that gain."""
        values = self.units.values
        return float((values > 0).mean()), float((values < 0).mean())

    def error(self) -> float:
        """The standard error of the mean. Rates of flips of which few were seen are at least those
        with one more flip."""
        if self.exact:
            return sqrt(sum(self.flips) * self.units.count + 1) / self.units.count
        return (self._drawn.high - self._drawn.low) / (2 * Z95)

    @cached_property
    def _drawn(self) -> Interval:
        return mean_bootstrap(self.units)


def _scale(baseline: Score) -> float:
    """The figure to which a drop is relative. Raises InputRefused for 0."""
    if baseline.value == 0:
        raise InputRefused(
            "the baseline scores 0, so a relative drop is not defined",
            where=baseline.metric,
            hint="check the evaluation task, or score each sample 0 or 1",
        )
    return abs(baseline.value)


def _range(*scores: Score) -> tuple[float, bool]:
    """The largest assumed loss of one sample, and whether none can lose more: scores that are never
    negative can lose all they are; of others, the range that was seen."""
    values = np.asarray([score.per_sample for score in scores])
    low, high = float(values.min()), float(values.max())
    if low >= 0 and not scores[0].lower_is_better:
        return high, True
    return (high - low) or abs(high), False


def _of_aggregates(
    baseline: Score, relative: np.ndarray, value: float, confidence: float
) -> Interval:
    """The interval of losses per resample [RESAMPLES]. If all losses are 0, up to z²/(n + z²) of
    the unseen samples may differ, as for proportions. The effect of one such sample follows from
    the interval of the metric: it is 2·z standard errors wide, so √n times its width is 2·z
    standard deviations."""
    groups = baseline.groups
    if relative.any():
        return corrected(relative, value, baseline.samples, confidence, groups)
    n = worth(groups) if groups else baseline.samples
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
