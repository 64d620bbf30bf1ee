from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

from optkit.facts.documents.pictures import WorstPictures
from optkit.ground.execute.step import Step, StepInput, StepResult
from optkit.road.steps.evaluate import Evaluate, EvaluationResult, RunsTask


@dataclass(frozen=True, kw_only=True)
class ShownWorst(StepResult):
    worst: WorstPictures


@dataclass(frozen=True, kw_only=True)
class ShowWorst(RunsTask, Step[ShownWorst]):
    """Run baseline and candidate again on the pictures whose own metric drops most, and list the
    objects or pixels that they have right.

    `baseline_file`: as `file`, of the baseline; `baseline_score`, `candidate_score`: the results of
    `Evaluate`; `embedded`: whether the result contains the pictures, with what is annotated and
    found in them, and not only figures.
    """

    name = "show_worst"
    version = 3
    tools = ("onnxruntime", "numpy", "pillow")
    baseline: StepInput
    baseline_score: StepInput
    candidate_score: StepInput
    baseline_file: str
    embedded: bool = False

    @classmethod
    def of_scores(
        cls,
        baseline: EvaluationResult,
        candidate: EvaluationResult,
        before: Evaluate,
        after: Evaluate,
        *,
        embedded: bool,
    ) -> Self:
        """The step for the results of the steps `before` (baseline) and `after` (candidate)."""
        same = {each.name: getattr(after, each.name) for each in fields(RunsTask)}
        engines = [asked.running for asked in (before, after) if asked.running is not None]
        names = {name: file for one in engines for name, file in one.engines.items()}
        return cls(
            **same
            | {
                "baseline": before.graph,
                "baseline_file": before.file,
                "baseline_engine": before.baseline_engine,
                "baseline_score": baseline,
                "candidate_score": candidate,
                "running": replace(engines[0], engines=names) if engines else None,
                "embedded": embedded,
            }
        )
