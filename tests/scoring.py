"""A task's Score over a session in one go, as the steps `evaluate` and `pool` make it in two."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from optkit.benchmarking.accuracy import EvaluationTask, pool, run
from optkit.benchmarking.partial_results import PartialScores
from optkit.evidence import Evidence
from optkit.measurement import Score
from optkit.runtimes import Session
from optkit.tensors import Feed


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
