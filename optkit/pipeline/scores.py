"""Scores of the evaluation samples: of all, or as far as the verdict took to be certain."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
from safetensors.numpy import load_file

from optkit.benchmarking import accuracy, gates, sequential
from optkit.data.spool import Spool
from optkit.errors import UsageError
from optkit.measurement import Score
from optkit.pipeline.job import Build, Role
from optkit.steps import RAW_SCORES, SCORES
from optkit.steps.collect import Samples
from optkit.steps.evaluate import Evaluated


def task_scores(build: Build) -> dict[str, Score]:
    """role → Score with its per-sample scores, for the roles that were evaluated. A candidate that
    is the baseline has one for both, so that nothing is left to chance between them."""
    scores: dict[str, Score] = {}
    for role in get_args(Role):
        parts = [build.scores.get(role), *(look.scores.get(role) for look in build.looks)]
        read = [_read(part) for part in parts if part is not None]
        if read:
            scores[role] = read[0] if len(read) == 1 else _joined(read, _restoring(build))
    if build.is_baseline and "candidate" in scores:
        scores["baseline"] = scores["candidate"]
    return scores


def slices(build: Build) -> list[str]:
    """The slice of each sample that was scored."""
    drawn: list[Samples] = [look.samples for look in build.looks]
    whole = [build.scored] if build.scored is not None else []
    names = [name for samples in drawn or whole for name in Spool(samples.path).slices()]
    return [names[row] for row in _restoring(build)] if drawn and names else names


def decided(build: Build) -> bool:
    """Whether the gates on accuracy are, by what is scored so far. Raises UsageError for a metric
    that is told of all samples together."""
    scores = task_scores(build)
    pair = scores["baseline"], scores["candidate"]
    if len(pair[1].per_sample) != _drawn(build):
        raise UsageError(
            f"{pair[1].metric} is not a mean over samples, so it needs all samples",
            where="eval.stop_early",
            hint="leave it out",
        )
    return gates.certain(build.job.recipe.gates.of(build.job.target.name), pair, slices(build))


def stopped(build: Build) -> str | None:
    """What is said of an evaluation that ended before its last sample."""
    if not build.looks or build.scored is None:
        return None
    total, used = build.scored.info.samples, _drawn(build)
    if used == total:
        return None
    return f"stopped after {used:,} of {total:,} samples, certain at {sequential.CONFIDENCE:.1%}"


def _drawn(build: Build) -> int:
    """How many samples are drawn so far."""
    return sum(look.samples.info.samples for look in build.looks)


def _restoring(build: Build) -> np.ndarray:
    """The rows of all looks in the order of their samples."""
    assert build.scored is not None
    return sequential.restoring(build.scored.info.samples, len(build.looks))


def _joined(scores: list[Score], restoring: np.ndarray) -> Score:
    first = scores[0]
    rows = np.concatenate([np.asarray(one.per_sample) for one in scores])[restoring]
    return accuracy.from_samples(
        rows, metric=first.metric, evidence=first.evidence, lower_is_better=first.lower_is_better
    )


def _read(part: Evaluated) -> Score:
    assert part.score is not None
    arrays = load_file(part.file(SCORES))
    per_sample, replicates = (tuple(arrays[name].tolist()) for name in RAW_SCORES)
    return replace(part.score, per_sample=per_sample, replicates=replicates)
