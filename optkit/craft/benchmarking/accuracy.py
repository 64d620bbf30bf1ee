"""Accuracy: a task's per-sample scores over a session, and the interval of the metric.

    mean       one score per sample, the metric is their mean: Wilson's interval and Tango's paired
               one where all are 0 or 1, else a bootstrap over samples
    aggregate  a row per sample, the metric (F1, a correlation, a perplexity) is the task's function
               of all rows: a bootstrap whose resamples are the same for both models
    weighted   the same, for a metric that costs much to prepare (average precision sorts all
               detections): the task's function prepares the rows once, and computes the metric from
               how often each one counts

A long evaluation writes its scores to disk every few seconds, see `partial_results`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from optkit.craft.benchmarking.dependence import Units, by_group, carriers
from optkit.craft.benchmarking.intervals import (
    CONFIDENCE,
    corrected,
    mean_interval,
    replicates,
    wilson,
)
from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.errors import InputRefused, OptkitError
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Basis, Interval, Score
from optkit.facts.tensors import Feed, narrowed
from optkit.ground.data.spool import counting
from optkit.ground.runtimes import Session

P = TypeVar("P")
Metric = Callable[[np.ndarray], float]
"""A metric of rows, or of how often each row counts."""

_FEW = 20  # samples; with fewer, a bootstrap does not represent the population well enough
_CARRIERS = 10  # samples that determine a mean (`intervals.carriers`); fewer are not enough
_SINGLE = frozenset({"aggregate", "weighted"})  # hooks that return one number


@dataclass(frozen=True)
class EvaluationTask:
    """The functions of a task, with its args filled in.

    score: (outputs, labels) → a number or a row per sample, [batch, …]. run: (session, feed) → the
    outputs; None: one run of the graph. agreement: (all rows [samples, …], those of the baseline) →
    one row per unit, 1 if both are the same. combine: all rows [samples, …] → one row per
    independent unit, if that is not a sample (for example a pair of texts). aggregate: rows → the
    metric. weighted: rows → a function of how often each row counts, float64 [rows] → the metric.
    slices: rows → such a function for each slice. each: rows → the metric of each sample alone, by
    which the report finds the worst ones. Without aggregate and weighted, the metric is
    the mean of the rows.
    """

    metric: str
    score: Callable[[Feed, np.ndarray], np.ndarray]
    combine: Callable[[np.ndarray], np.ndarray] | None = None
    aggregate: Callable[[np.ndarray], float] | None = None
    weighted: Callable[[np.ndarray], Metric] | None = None
    slices: Callable[[np.ndarray], Mapping[str, Metric]] | None = None
    each: Callable[[np.ndarray], np.ndarray] | None = None
    lower_is_better: bool = False
    run: Callable[[Session, Feed], Feed] | None = None
    agreement: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None


def run(
    session: Session,
    batches: Iterable[tuple[Feed, np.ndarray]],
    task: EvaluationTask,
    kept: PartialScores,
) -> None:
    """Run every batch and add its scores to `kept`, which contains those of an earlier run.
    `batches` does not contain the batches of the earlier run.

    Raises InputRefused if the task returns another shape than [batch, …] or a value that is not
    finite (the error names the sample).
    """
    for feed, labels in batches:
        first = kept.first + kept.samples
        outputs = outputs_of(task, session, feed, labels, first=first)
        kept.add(_scores(task, outputs, labels, first=first))


def pool(
    kept: PartialScores,
    task: EvaluationTask,
    *,
    evidence: Evidence,
    baseline: np.ndarray | None = None,
    sliced: bool = False,
    groups: Sequence[str] = (),
) -> Score:
    """The Score of all kept rows, one per sample. `baseline`: the baseline's rows of the same
    samples, for a task of agreement; None: the kept rows are those of the baseline. `sliced`:
    whether to score the slices that the task computes too. `groups`: the group of each sample, if
    samples belong together. Raises InputRefused if there is no sample."""
    if not kept.samples:
        raise InputRefused("the evaluation task yielded no samples", where=task.metric)
    rows = np.concatenate(kept.scores)
    if task.agreement is not None:
        rows = _returned("agreement", task.agreement, rows, rows if baseline is None else baseline)
    if task.combine is not None:
        rows = _returned("combine", task.combine, rows)
    score = from_samples(
        rows,
        metric=task.metric,
        evidence=evidence,
        aggregate=task.aggregate,
        weighted=task.weighted,
        lower_is_better=task.lower_is_better,
        groups=_of_rows(groups, len(rows), task.metric),
    )
    if not sliced or task.slices is None:
        return score
    return replace(score, slices=_of_slices(task.slices, rows, score))


def _of_rows(groups: Sequence[str], rows: int, metric: str) -> list[int]:
    """The number of the group of each row that is scored. If `combine` makes one row of a few
    samples that follow each other, it is the group of the first of them. Raises InputRefused if
    rows have no group."""
    if len(groups) % rows:
        raise InputRefused(
            f"the samples have groups, and combine() returned {rows} rows for {len(groups)} of "
            "them",
            where=metric,
            hint="return one row for each sample, or for every k samples that follow each other",
        )
    return numbered(groups[:: len(groups) // rows or 1])


def numbered(groups: Sequence[str]) -> list[int]:
    """The number of each group, in the order in which they begin."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    return [numbers[name] for name in groups]


def alone(kept: PartialScores, task: EvaluationTask) -> np.ndarray | None:
    """The metric of each sample alone [samples], in the order of the samples; None if the task does
    not compute it. Raises InputRefused."""
    if task.each is None:
        return None
    values = _returned("each", task.each, np.concatenate(kept.scores))
    if values.shape != (kept.samples,):
        raise InputRefused(
            f"each() returned shape {list(values.shape)} for {kept.samples} samples",
            where=task.metric,
            hint="return one number per sample",
        )
    return values


def outputs_of(
    task: EvaluationTask, session: Session, feed: Feed, labels: np.ndarray, *, first: int
) -> Feed:
    """What the task scores: the outputs for the samples of a batch that have labels. `first`: the
    number of its first sample, for errors. Raises InputRefused."""
    outputs = _outputs(task, session, narrowed(feed, session.inputs), first=first)
    return counting(outputs, feed, labels)


def _of_slices(
    slices: Callable[[np.ndarray], Mapping[str, Metric]], rows: np.ndarray, whole: Score
) -> dict[str, Score]:
    """The score of each slice. Raises InputRefused."""

    def of(function: Metric) -> Score:
        return from_samples(
            rows,
            metric=whole.metric,
            evidence=whole.evidence,
            weighted=lambda _: function,
            lower_is_better=whole.lower_is_better,
            groups=whole.groups,
        )

    return {name: of(function) for name, function in _prepared("slices", slices, rows).items()}


def _outputs(task: EvaluationTask, session: Session, feed: Feed, *, first: int) -> Feed:
    if task.run is None:
        return session.run(feed)
    try:
        return task.run(session, feed)
    except OptkitError:
        raise
    except Exception as error:  # run() is the user's code
        raise InputRefused(
            f"the evaluation task's run() raised {type(error).__name__}: {error}",
            where=f"evaluation batch that begins at sample {first}",
            hint="run() takes the session and a feed, and returns outputs by name, [batch, …]",
        ) from error


def _scores(task: EvaluationTask, outputs: Feed, labels: np.ndarray, *, first: int) -> np.ndarray:
    where = f"evaluation batch that begins at sample {first}"
    try:
        scores = np.asarray(task.score(outputs, labels), dtype=np.float64)
    except Exception as error:  # score() is the user's code
        hint = "it takes the outputs by name and the labels, and returns scores, shape [batch]"
        if isinstance(error, KeyError) and not set(error.args) & outputs.keys():
            hint = f"the model's outputs are {', '.join(map(repr, outputs))}: read one of these"
        elif isinstance(error, ValueError) and str(error).startswith("the label is"):
            hint = "labels start at 0: if those in the data start at 1, subtract 1"
        raise InputRefused(
            f"the evaluation task's score() raised {type(error).__name__}: {error}",
            where=where,
            hint=hint,
        ) from error
    # whether the metric is their mean
    hooks = (task.combine, task.aggregate, task.weighted, task.agreement)
    whole = all(hook is None for hook in hooks)
    if scores.shape[: None if whole else 1] != (len(labels),):
        raise InputRefused(
            f"score() returned shape {list(scores.shape)} for a batch of {len(labels)}",
            where=where,
            hint="return one score per sample, shape [batch]",
        )
    finite = np.isfinite(scores).reshape(len(scores), -1).all(1)
    if not finite.all():
        bad = int(np.flatnonzero(~finite)[0])
        raise InputRefused(
            f"score() returned {scores[bad]}",
            where=f"evaluation sample {first + bad}",
            hint="every score must be a finite number; check this sample and its label",
        )
    return scores


def _returned(name: str, function: Callable[..., object], *rows: np.ndarray) -> np.ndarray:
    """The finite numbers that a hook of the task returns for all rows. Raises InputRefused."""
    where = f"scores of shape {list(rows[0].shape)}"
    try:
        values = np.asarray(function(*rows), dtype=np.float64)
    except Exception as error:  # a hook is the user's code
        message = f"the evaluation task's {name}() raised {type(error).__name__}: {error}"
        raise InputRefused(message, where=where) from error
    if not np.isfinite(values).all() or (name in _SINGLE and values.ndim):
        raise InputRefused(
            f"{name}() returned {repr(values)[:60]}",
            where=where,
            hint="return finite numbers; aggregate() and weighted()'s function, a single one",
        )
    return values


def from_samples(
    scores: np.ndarray,
    *,
    metric: str,
    evidence: Evidence,
    aggregate: Metric | None = None,
    weighted: Callable[[np.ndarray], Metric] | None = None,
    lower_is_better: bool = False,
    groups: Sequence[int] = (),
) -> Score:
    """A Score from per-sample scores [samples], or with `aggregate` or `weighted` from rows
    [samples, …]. `groups`: the group of each sample, if samples belong together.

    Raises InputRefused for rows of several numbers if neither computes one number from them.
    """
    n = len(scores)
    if weighted is not None:
        of_counts = _prepared("weighted", weighted, scores)
        value = float(_returned("weighted", of_counts, np.ones(n)))
        drawn = replicates(
            n, lambda chosen: of_counts(np.bincount(chosen, minlength=n) * 1.0), groups
        )
        return of_resamples(value, drawn, n, metric, evidence, lower_is_better, groups)
    if aggregate is not None:
        value = float(_returned("aggregate", aggregate, scores))
        drawn = replicates(n, lambda chosen: float(aggregate(scores[chosen])), groups)
        return of_resamples(value, drawn, n, metric, evidence, lower_is_better, groups)
    if scores.ndim != 1:
        raise InputRefused(
            f"combine() returned rows of shape {list(scores.shape[1:])}",
            where=metric,
            hint="return one number per row, or define aggregate(scores)",
        )
    proportion = bool(np.isin(scores, (0.0, 1.0)).all())
    interval, basis = _of_mean(scores, groups, proportion)
    return Score(
        evidence,
        metric,
        float(scores.mean()),
        interval,
        n,
        proportion,
        tuple(scores.tolist()),
        lower_is_better=lower_is_better,
        groups=tuple(groups),
        basis=basis,
    )


def _of_mean(
    scores: np.ndarray, groups: Sequence[int], proportion: bool, confidence: float = CONFIDENCE
) -> tuple[Interval, Basis]:
    """The interval of a mean of scores [samples], and how it was made."""
    units = Units.of(scores, groups, ends=(0.0, 1.0) if proportion else None)
    if proportion and not units.grouped:
        return wilson(units.mean * units.count, units.count, confidence), units.basis("score")
    low, high = mean_interval(units, confidence)
    found = Interval(max(low, 0.0), min(high, 1.0)) if proportion else Interval(low, high)
    return found, units.basis("bootstrap")


def _prepared(name: str, hook: Callable[[np.ndarray], P], rows: np.ndarray) -> P:
    """What a hook makes of all rows: the metric as a function of how often each one counts, or one
    for each slice. Raises InputRefused."""
    try:
        return hook(rows)
    except Exception as error:  # a hook is the user's code
        message = f"the evaluation task's {name}() raised {type(error).__name__}: {error}"
        raise InputRefused(message, where=f"scores of shape {list(rows.shape)}") from error


def of_resamples(
    value: float,
    drawn: np.ndarray,
    n: int,
    metric: str,
    evidence: Evidence,
    lower_is_better: bool,
    groups: Sequence[int] = (),
) -> Score:
    """The Score of a metric of all rows, from its value and the metric of each resample."""
    # the metric may be undefined on a resample: it then counts as the value itself
    drawn = np.where(np.isfinite(drawn), drawn, value)
    count = len(set(groups))
    basis = Basis("bootstrap", count or n, "groups" if count else "samples")
    return Score(
        evidence,
        metric,
        value,
        corrected(drawn, value, n, groups=groups),
        n,
        False,
        replicates=tuple(drawn.tolist()),
        lower_is_better=lower_is_better,
        groups=tuple(groups),
        basis=basis,
    )


def value_interval(score: Score, confidence: float = CONFIDENCE) -> Interval | None:
    """The interval of the metric itself; None if there are not enough samples (`too_little`)."""
    if too_little(score) is not None:
        return None
    if score.replicates:
        drawn = np.asarray(score.replicates)
        return corrected(drawn, score.value, score.samples, confidence, score.groups)
    values = np.asarray(score.per_sample)
    return _of_mean(values, score.groups, _of_zeros_and_ones(values), confidence)[0]


def too_little(score: Score) -> str | None:
    """Why there are not enough samples for an interval of the metric; None if there are."""
    values = np.asarray(score.per_sample)
    if _of_zeros_and_ones(values):
        return None
    what = "groups of samples" if score.groups else "samples"
    count = len(set(score.groups)) or score.samples
    if count < _FEW:
        return f"{count} {what} are too few to say"
    if not values.size:
        return None
    few = carriers(by_group(values, score.groups) if score.groups else values)
    if few < _CARRIERS:
        return f"the mean hangs on about {few:.0f} of {count:,} {what}: too few to say"
    return None


def _of_zeros_and_ones(values: np.ndarray) -> bool:
    return bool(values.size and np.isin(values, (0.0, 1.0)).all())
