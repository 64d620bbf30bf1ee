from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from optkit.evidence import Evidence
from optkit.execute.reads import Record
from optkit.execute.step import (
    Input,
    ReadsCode,
    Result,
    Shards,
    Step,
    always,
    beside_the_key,
    spread,
)
from optkit.measurement import Score
from optkit.steps.sessions import Engines


@dataclass(frozen=True, kw_only=True)
class Evaluated(Result):
    """`score`: without what is by sample, which is in the file of scores; None of a part of the
    samples. `reads`: what the task's code depended on."""

    score: Score | None = None
    reads: Record = always(Record())


@dataclass(frozen=True, kw_only=True)
class Evaluate(ReadsCode, Shards, Step[Evaluated]):
    """Score a graph on the spooled evaluation samples by the task's own functions.

    `file`: of the graph; `task`, `code`, `metric`, `args`: the task, the digest of its code, its
    metric and arguments; `path`: where its file lies; `imports`: the Python files, with their
    digests, that another machine must have as they are here. `baseline_score`: what this step gave
    for the baseline, for a task of agreement; without it the graph is the baseline, and its rows
    are kept beside its scores. `running`: the engine that runs instead of the graph; `kept`: as of
    `Compile`.
    """

    name = "evaluate"
    version = 5
    tools = ("onnxruntime", "numpy")
    anywhere: ClassVar[bool] = True

    graph: Input
    samples: Input
    baseline_score: Input | None = None
    engine: Input | None = None
    baseline_engine: Input | None = None
    file: str
    batch: int | None
    evidence: Evidence
    task: str
    code: str
    metric: str | None
    args: Mapping[str, object]
    running: Engines | None = spread(None)
    path: Path = beside_the_key()
    imports: Mapping[str, str] = beside_the_key()
    kept: Path | None = beside_the_key(None)
