"""Scores of the evaluation samples: of all samples, or of those before an early stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from safetensors.numpy import load_file

from optkit.craft.benchmarking import accuracy, gates, sequential
from optkit.facts.errors import UsageError
from optkit.facts.measurement import Score, Scores
from optkit.ground.data.spool import Spool
from optkit.road.pipeline.job import Build, Role
from optkit.road.steps.collect import Samples
from optkit.road.steps.evaluate import EvaluationResult
from optkit.road.steps.file_names import GROUPS, RAW_SCORES, SCORES, SLICE


def task_scores(build: Build) -> Scores:
    """The scores of the models that were evaluated, with their scores per sample. If the candidate
    is the baseline, both have the same Score, so that they do not differ by chance."""
    candidate = _task_score(build, "candidate")
    baseline = candidate if build.is_baseline else _task_score(build, "baseline")
    return Scores(candidate, baseline, _task_score(build, "reference"))


def _task_score(build: Build, role: Role) -> Score | None:
    parts = [build.scores.get(role), *(look.scores.get(role) for look in build.looks)]
    scores = [_read(part) for part in parts if part is not None]
    if len(scores) > 1:
        return _joined(scores, _restoring(build), _groups(build))
    return scores[0] if scores else None


def slices(build: Build) -> list[str]:
    """The slice of each sample that was scored."""
    return _named(build, lambda spool: spool.slices())


def _groups(build: Build) -> list[int]:
    """The number of the group of each sample that was scored; empty if there are no groups."""
    return accuracy.numbered(_named(build, lambda spool: spool.groups()))


def _named(build: Build, names_of: Callable[[Spool], list[str]]) -> list[str]:
    """The names of all samples that were scored, in their order."""
    drawn: list[Samples] = [look.samples for look in build.looks]
    whole = [build.scored] if build.scored is not None else []
    names = [name for samples in drawn or whole for name in names_of(Spool(samples.path))]
    return [names[row] for row in _restoring(build)] if drawn and names else names


def decided(build: Build) -> bool:
    """Whether the scores so far decide the gates on accuracy. Raises UsageError for a metric that
    is not a mean over samples."""
    pair = task_scores(build).pair
    assert pair is not None
    if len(pair[1].per_sample) != _drawn(build):
        raise UsageError(
            f"{pair[1].metric} is not a mean over samples, so it needs all samples",
            where="eval.stop_early",
            hint="leave it out",
        )
    return gates.certain(build.job.recipe.gates.of(build.job.target.name), pair, slices(build))


def stopped(build: Build) -> str | None:
    """A note on an evaluation that ended before its last sample; None: it used all samples."""
    if not build.looks or build.scored is None:
        return None
    total, used = build.scored.info.samples, _drawn(build)
    if used == total:
        return None
    return f"stopped after {used:,} of {total:,} samples, certain at {sequential.CONFIDENCE:.1%}"


def _drawn(build: Build) -> int:
    """The number of samples that are drawn so far."""
    return sum(look.samples.info.samples for look in build.looks)


def _restoring(build: Build) -> np.ndarray:
    """The indices that bring the rows of all looks into the order of the samples."""
    assert build.scored is not None
    return sequential.restoring(build.scored.info.samples, len(build.looks))


def _joined(scores: list[Score], restoring: np.ndarray, groups: list[int]) -> Score:
    first = scores[0]
    rows = np.concatenate([np.asarray(score.per_sample) for score in scores])[restoring]
    return accuracy.from_samples(
        rows,
        metric=first.metric,
        evidence=first.evidence,
        lower_is_better=first.lower_is_better,
        groups=groups,
    )


def _read(part: EvaluationResult) -> Score:
    assert part.score is not None
    arrays = load_file(part.file(SCORES))
    per_sample, replicates = (tuple(arrays[name].tolist()) for name in RAW_SCORES)
    groups = tuple(arrays[GROUPS].tolist())
    score = replace(part.score, per_sample=per_sample, replicates=replicates, groups=groups)
    slices = {
        name.removeprefix(SLICE): accuracy.of_resamples(
            float(values[0]),
            values[1:],
            score.samples,
            score.metric,
            score.evidence,
            score.lower_is_better,
            groups,
        )
        for name, values in arrays.items()
        if name.startswith(SLICE)
    }
    return replace(score, slices=slices)
