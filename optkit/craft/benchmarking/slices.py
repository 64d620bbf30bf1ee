"""The worst slice of an evaluation: a class, or another group of samples.

pass           every slice keeps the limit, each by its own 95 % interval. To pass wrongly, the
               slice that breaks the limit must pass, so the chance stays that of one interval
               however many slices there are (intersection-union test, Berger 1982)
fail           a slice breaks it by an interval of 1 - 5 %/K for K slices, since the worst of
               many is picked (Bonferroni, which is Holm's first step)
inconclusive   neither
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optkit.craft.benchmarking.accuracy import from_samples, value_interval
from optkit.craft.benchmarking.intervals import CONFIDENCE
from optkit.craft.benchmarking.paired_drop import drop
from optkit.facts.measurement import Interval, Outcome, Score


@dataclass(frozen=True)
class Slice:
    """The samples of one name. `ci95`: the interval of this slice; `together`: an interval that
    holds for all slices at once. Both are None if there are too few samples."""

    name: str
    baseline: Score
    candidate: Score
    value: float
    ci95: Interval | None
    together: Interval | None


@dataclass(frozen=True)
class Worst:
    """The slice that decides the outcome, among `count` slices."""

    outcome: Outcome
    slice: Slice
    count: int

    @property
    def interval(self) -> Interval | None:
        """The interval that decided."""
        return self.slice.together if self.outcome == "fail" else self.slice.ci95


def drops(
    names: Sequence[str], baseline: Score, candidate: Score, confidence: float = CONFIDENCE
) -> list[Slice]:
    """The drop in each slice: those of the scores, if the task computes slices, else those that
    `names` gives each sample. Raises ValueError if the metric is then no mean over samples."""

    def of(before: Score, after: Score, level: float) -> Interval | None:
        # there is nothing to which a drop could be relative
        if not baseline.proportion and before.value == 0:
            return None
        return drop(before, after, level).ci95

    slices = _split(names, baseline, candidate, confidence, of)
    return [replace(group, value=_drop(group.baseline, group.candidate)) for group in slices]


def values(
    names: Sequence[str], baseline: Score, candidate: Score, confidence: float = CONFIDENCE
) -> list[Slice]:
    """The candidate's metric in each slice. Arguments and errors as for `drops`."""
    return _split(
        names, baseline, candidate, confidence, lambda _, after, level: value_interval(after, level)
    )


def worst(slices: Sequence[Slice], limit: float, *, at_most: bool) -> Worst:
    """Judge all slices by a limit that each must keep: an upper limit (`at_most`) or a lower
    one."""
    sign = 1.0 if at_most else -1.0

    def low(interval: Interval | None) -> float:
        return -np.inf if interval is None else min(sign * end for end in interval)

    def high(interval: Interval | None) -> float:
        return np.inf if interval is None else max(sign * end for end in interval)

    broken = max(slices, key=lambda group: low(group.together))
    if low(broken.together) > sign * limit:
        return Worst("fail", broken, len(slices))
    doubtful = max(slices, key=lambda group: (high(group.ci95), sign * group.value))
    kept = high(doubtful.ci95) <= sign * limit
    return Worst("pass" if kept else "inconclusive", doubtful, len(slices))


def _split(
    names: Sequence[str],
    baseline: Score,
    candidate: Score,
    confidence: float,
    interval: Callable[[Score, Score, float], Interval | None],
) -> list[Slice]:
    pairs = (
        {name: (baseline.slices[name], after) for name, after in candidate.slices.items()}
        if candidate.slices
        else _by_sample(names, baseline, candidate)
    )
    together = 1 - (1 - confidence) / len(pairs)
    slices = []
    for name, (before, after) in pairs.items():
        single, joint = (interval(before, after, level) for level in (confidence, together))
        slices.append(Slice(name, before, after, after.value, single, joint))
    return slices


def _by_sample(
    names: Sequence[str], baseline: Score, candidate: Score
) -> dict[str, tuple[Score, Score]]:
    """The scores of baseline and candidate in each slice of the samples."""
    if not baseline.per_sample or not candidate.per_sample:
        raise ValueError(f"{candidate.metric} is not a mean over samples, so it has no slices")
    if not len(names) == baseline.samples == candidate.samples:
        raise ValueError(f"{len(names)} slices of {candidate.samples} samples")
    kinds, place = np.unique(np.asarray(names), return_inverse=True)
    pairs = {}
    for index, name in enumerate(kinds.tolist()):
        before = _part(baseline, place == index)
        pairs[name] = before, before if candidate is baseline else _part(candidate, place == index)
    return pairs


def _part(score: Score, chosen: np.ndarray) -> Score:
    rows = np.asarray(score.per_sample)[chosen]
    return replace(
        from_samples(
            rows,
            metric=score.metric,
            evidence=score.evidence,
            lower_is_better=score.lower_is_better,
            groups=np.asarray(score.groups)[chosen].tolist() if score.groups else (),
        ),
        proportion=score.proportion,
    )


def _drop(before: Score, after: Score) -> float:
    if not before.proportion and before.value == 0:
        return 0.0
    return drop(before, after).value
