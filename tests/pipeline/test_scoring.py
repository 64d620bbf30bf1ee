"""The steps that score and time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.facts.evidence import Evidence
from optkit.facts.precisions import PRECISIONS
from optkit.ground.devices import target
from optkit.ground.execute.runner import key_of
from optkit.ground.recipe import Bench, Recipe
from optkit.road.pipeline import Build, Foreign, Job
from optkit.road.pipeline.evaluation import score
from optkit.road.pipeline.timing import Race, race
from optkit.road.steps.bench import BenchResult, BenchSide
from optkit.road.steps.collect import CollectedSamples
from optkit.road.steps.graph import Graph
from optkit.road.steps.outputs import Outputs
from optkit.road.steps.sessions import CpuSession


def _scored(recipe: Recipe, **facts: Any) -> list[Any]:
    """The steps that score a candidate."""
    build = Build(
        Job(recipe, target("l4"), PRECISIONS["int8"]), "tensorrt", (), PRECISIONS["fp16"],
        measured=False,
    )  # fmt: skip
    build.evaluation = CollectedSamples.of(Foreign(meta={"metric": "m", **facts}))
    asked: list[Any] = []

    def do(step: Any, label: str) -> Any:
        asked.append(step)
        return Outputs(kept=True)

    steps: Any = SimpleNamespace(objects=Path("store/objects"), do=do)
    score(build, steps, "candidate", Graph(), "model.onnx", Evidence.SIMULATED)
    return asked


def test_a_task_of_optkit_is_a_step_of_its_code_and_args() -> None:
    keys = []
    for k in (1, 2, 1):
        recipe = Recipe.from_dict({"name": "net", "eval": {"task": "top1", "args": {"k": k}}})
        (step,) = _scored(recipe, scoring={"k": k})
        assert not step.runs_code and len(step.code) == 64
        keys.append(key_of(step))
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize("loops", [False, True])
def test_a_users_task_scores_outputs_that_are_kept_unless_it_runs_the_graph(
    loops: bool, tmp_path: Path
) -> None:
    (tmp_path / "task.py").touch()
    recipe = Recipe.from_dict({"name": "net", "eval": {"task": "task.py"}}, base=tmp_path)
    *outputs, evaluate = _scored(recipe, loops=loops)
    assert [step.name for step in outputs] == ([] if loops else ["outputs"])
    assert evaluate.runs_code and (evaluate.outputs is None) == loops


def test_a_latency_is_of_the_machine_that_it_was_measured_on() -> None:
    keys: list[str] = []

    def do(step: Any, label: str) -> Any:
        keys.append(key_of(step))
        return BenchResult()

    steps: Any = SimpleNamespace(objects=Path("store/objects"), do=do)
    side = BenchSide("engine", "model.onnx", "onnxruntime", CpuSession(None))
    for machine in ({"cpu": "one"}, {"cpu": "two"}, {"cpu": "one"}):
        sides = {"engine": side, "baseline": side}
        race(Race("time", Foreign(), {}, sides, Bench(), [1], machine), steps, strict=False)
    assert keys[0] == keys[2] != keys[1]
