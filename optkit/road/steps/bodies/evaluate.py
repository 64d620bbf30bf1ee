from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from optkit.craft.benchmarking import accuracy
from optkit.craft.benchmarking.drawings import Objects, Regions
from optkit.facts.errors import located
from optkit.facts.measurement import Score
from optkit.facts.tensors import Feed
from optkit.ground import user_code
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import Session
from optkit.road.steps.bodies.batches import begun, joined
from optkit.road.steps.bodies.outputs import KeptOutputs
from optkit.road.steps.bodies.sessions import opened
from optkit.road.steps.evaluate import Evaluate, EvaluationResult, RunsTask
from optkit.road.steps.file_names import EACH, GROUPS, RAW_SCORES, SCORES, SLICE

# the hooks that run in this step
_TASK = ("run", "score", "agreement", "combine", "aggregate", "weighted", "slices", "each")
Drawn = Callable[[Feed, np.ndarray], Sequence[Objects | Regions]]
"""(outputs, labels) → what is drawn of each sample."""
_ROWS = "rows"  # those of the baseline, in the file of its scores


def run(step: Evaluate, out: Path, progress: Progress) -> EvaluationResult:
    task, drawn = task_of(step)
    score = _scored(step, task, out, progress)
    shown = score is not None and drawn is not None and task.each is not None
    return EvaluationResult(score=score, drawn=shown)


def _scored(
    step: Evaluate, task: accuracy.EvaluationTask, out: Path, progress: Progress
) -> Score | None:
    """The score; None for a part of the samples, whose rows are written to `out`."""
    rows = None
    if step.baseline_score is not None:
        rows = load_file(step.baseline_score.path / SCORES)[_ROWS]
    with located(step.data or str(step.path)):
        if (kept := joined(step)) is None:
            batches, kept = begun(step, step.samples, step.batch, progress)
            labelled = ((feed, labels) for feed, labels in batches if labels is not None)
            with _opened(step) as session:
                accuracy.run(session, labelled, task, kept)
            if step.shard is not None:
                kept.save(out)
                return None
        score = accuracy.pool(
            kept,
            task,
            evidence=step.evidence,
            baseline=rows,
            sliced=step.sliced,
            groups=Spool(step.samples.path).groups(),
        )
        each = accuracy.alone(kept, task)
    raw = {name: np.asarray(getattr(score, name)) for name in RAW_SCORES}
    raw[GROUPS] = np.asarray(score.groups, np.int64)
    raw |= {
        SLICE + name: np.asarray((one.value, *one.replicates)) for name, one in score.slices.items()
    }
    if each is not None:
        raw[EACH] = each
    if task.agreement is not None and rows is None:
        raw[_ROWS] = np.concatenate(kept.scores)
    save_file(raw, out / SCORES)
    return replace(score, per_sample=(), replicates=(), slices={}, groups=())


def task_of(step: RunsTask) -> tuple[accuracy.EvaluationTask, Drawn | None]:
    """The functions of the task, and the one that draws, if it has it."""
    module = user_code.load_module(step.path)
    user_code.member(module, "score", step.path)
    hooks: Any = {name: user_code.hook(module, name, step.args) for name in _TASK}
    lower_is_better = bool(getattr(module, "LOWER_IS_BETTER", False))
    task = accuracy.EvaluationTask(step.metric or "", lower_is_better=lower_is_better, **hooks)
    return task, user_code.hook(module, "drawn", step.args)


def _opened(step: Evaluate) -> Session:
    """The outputs that are kept; otherwise a session of the engine if its device is here, else of
    the graph in ONNX Runtime."""
    if step.outputs is not None:
        return KeptOutputs(step.outputs.path, Spool(step.samples.path).inputs)
    return opened(step)
