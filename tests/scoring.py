"""A task's Score over a session in one go, as the steps `evaluate` and `pool` make it in two."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from optkit.craft.benchmarking.accuracy import EvaluationTask, pool, run
from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Score
from optkit.facts.tensors import Feed
from optkit.ground.runtimes import Session


def score(
    session: Session,
    batches: Iterable[tuple[Feed, np.ndarray]],
    task: EvaluationTask,
    *,
    evidence: Evidence,
    kept: PartialScores | None = None,
) -> Score:
    kept = kept or PartialScores(None)
    run(session, batches, task, kept)
    return pool(kept, task, evidence=evidence)
