"""Scores of the evaluation samples: of all, or as far as the verdict took to be certain."""

from __future__ import annotations

from typing import Any

import numpy as np
from safetensors.numpy import load_file

from optkit.benchmarking import accuracy, gates
from optkit.benchmarking import sequential as looks
from optkit.data.spool import Spool
from optkit.errors import UsageError
from optkit.execute.step import Folder
from optkit.measurement import Score
from optkit.pipeline.job import Build
from optkit.steps import RAW_SCORES, SCORES

_ROLES = ("candidate", "baseline", "reference")


def drawn_name(part: int) -> str:
    """The entry with the samples of a look."""
    return f"drawn/{part}"


def score_name(role: str, part: int | None = None) -> str:
    """The entry with the scores of all samples, or of those of a look."""
    return f"{role}_score" if part is None else f"{role}_score/{part}"


def task_scores(made: Build) -> dict[str, Score]:
    """role → Score with its per-sample scores, for the roles that were evaluated. A candidate that
    is the baseline has one for both, so that nothing is left to chance between them."""
    found = {}
    for role in _ROLES:
        entries = [made.entries.get(score_name(role))]
        entries += [made.entries.get(score_name(role, part)) for part in range(_parts(made))]
        scores = [_read(entry) for entry in entries if entry is not None]
        if scores:
            found[role] = scores[0] if len(scores) == 1 else _joined(scores, _restoring(made))
    if made.is_baseline and "candidate" in found:
        found["baseline"] = found["candidate"]
    return found


def slices(made: Build) -> list[str]:
    """The slice of each sample that was scored."""
    drawn = [made.entries[drawn_name(part)] for part in range(_parts(made))]
    whole = [made.scored] if made.scored is not None else []
    names = [name for entry in drawn or whole for name in Spool(entry.path).slices()]
    return [names[row] for row in _restoring(made)] if drawn and names else names


def decided(made: Build) -> bool:
    """Whether the gates on accuracy are, by what is scored so far. Raises UsageError for a metric
    that is told of all samples together."""
    scores = task_scores(made)
    pair = scores["baseline"], scores["candidate"]
    if len(pair[1].per_sample) != _drawn(made):
        raise UsageError(
            f"{pair[1].metric} is no mean over samples, so it takes all of them",
            where="eval.stop_early",
            hint="leave it out",
        )
    return gates.certain(made.job.recipe.gates.of(made.job.target.name), pair, slices(made))


def stopped(made: Build) -> str | None:
    """What is said of an evaluation that ended before its last sample."""
    if not _parts(made) or made.scored is None:
        return None
    total, used = made.scored.meta["info"]["samples"], _drawn(made)
    if used == total:
        return None
    return f"stopped after {used:,} of {total:,} samples, certain at {looks.CONFIDENCE:.1%}"


def _parts(made: Build) -> int:
    return sum(name.startswith(drawn_name(0)[:-1]) for name in made.entries)


def _drawn(made: Build) -> int:
    """How many samples are drawn so far."""
    entries = [made.entries[drawn_name(part)] for part in range(_parts(made))]
    return sum(entry.meta["info"]["samples"] for entry in entries)


def _restoring(made: Build) -> np.ndarray:
    """The rows of all looks in the order of their samples."""
    assert made.scored is not None
    return looks.restoring(made.scored.meta["info"]["samples"], _parts(made))


def _joined(scores: list[Score], restoring: np.ndarray) -> Score:
    first = scores[0]
    rows = np.concatenate([np.asarray(one.per_sample) for one in scores])[restoring]
    return accuracy.from_samples(
        rows, metric=first.metric, evidence=first.evidence, lower_is_better=first.lower_is_better
    )


def _read(entry: Folder) -> Score:
    arrays: dict[str, Any] = load_file(entry.file(SCORES))
    raw = {name: arrays[name].tolist() for name in RAW_SCORES}
    return Score.from_json({**entry.meta["score"], **raw})
