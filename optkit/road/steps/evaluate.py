from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Score
from optkit.ground.execute.step import (
    RunsCode,
    Shards,
    Step,
    StepInput,
    StepResult,
    beside_the_key,
    spread,
)
from optkit.road.steps.sessions import Engines


@dataclass(frozen=True, kw_only=True)
class RunsTask(RunsCode):
    """A step that runs a graph on evaluation samples with the functions of the task.

    `file`: the file of the graph; `task`, `code`, `metric`, `args`: the task, the digest of its
    file, its metric and its arguments; `path`: the path of its file; `data`: that of the samples,
    if optkit reads them, for errors. `running`: the engine that runs instead of the graph; `kept`:
    as in `Compile`.
    """

    graph: StepInput
    samples: StepInput
    engine: StepInput | None = None
    baseline_engine: StepInput | None = None
    file: str
    batch: int | None
    evidence: Evidence
    task: str
    code: str
    metric: str | None
    args: Mapping[str, object]
    running: Engines | None = spread(None)
    path: Path = beside_the_key()
    data: str | None = beside_the_key(None)
    kept: Path | None = beside_the_key(None)


@dataclass(frozen=True, kw_only=True)
class EvaluationResult(StepResult):
    """`score`: without the parts per sample, which are in the file of scores; None for a part of
    the samples. `drawn`: whether the task can draw its samples."""

    score: Score | None = None
    drawn: bool = False


@dataclass(frozen=True, kw_only=True)
class Evaluate(RunsTask, Shards, Step[EvaluationResult]):
    """Score a graph on the spooled evaluation samples with the functions of the task.

    `baseline_score`: the result of this step for the baseline, for a task of agreement; without it
    the graph is the baseline, and the step keeps its rows next to its scores. `sliced`: whether the
    slices that the task computes are scored too. `outputs`: what the graph returns for the samples,
    if that is kept; the step then does not run it.
    """

    name = "evaluate"
    version = 8
    tools = ("onnxruntime", "numpy")

    baseline_score: StepInput | None = None
    outputs: StepInput | None = None
    sliced: bool = False
