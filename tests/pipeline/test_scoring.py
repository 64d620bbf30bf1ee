"""The code of a task that goes with an evaluation to a node."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.devices import target
from optkit.evidence import Evidence
from optkit.execute.node import packed
from optkit.execute.reads import Record
from optkit.execute.runner import key_of
from optkit.execute.task import Limits, Task
from optkit.pipeline import Build, Foreign, Job
from optkit.pipeline.accuracy import score
from optkit.pipeline.latency import Race, race
from optkit.precisions import PRECISIONS
from optkit.recipe import Bench, Recipe
from optkit.steps.bench import Side, Timed
from optkit.steps.collect import Collected
from optkit.steps.graph import Graph
from optkit.steps.sessions import CpuSession
from optkit.store import digest_file


def test_a_node_needs_what_the_task_imports_and_not_the_samples_that_it_read(
    tmp_path: Path,
) -> None:
    for name in ("task.py", "helper.py", "images.npy"):
        (tmp_path / name).write_text(name)
    recipe = Recipe.from_dict({"name": "net", "eval": {"task": str(tmp_path / "task.py")}},
                              base=tmp_path)  # fmt: skip
    build = Build(
        Job(recipe, target("l4"), PRECISIONS["int8"]),
        "tensorrt",
        (),
        PRECISIONS["fp16"],
        measured=False,
    )
    read = {str(path): digest_file(path) for path in tmp_path.iterdir()}
    record = Record({"content": read}).to_json()
    build.evaluation = Collected.of(Foreign(meta={"metric": "m", "reads": record}))
    asked: list[dict[str, Any]] = []
    steps = SimpleNamespace(
        objects=Path("store/objects"),
        do=lambda step, label: asked.append({**step.params, **step.beside}),
    )
    score(build, steps, "candidate", Graph(), "model.onnx", Evidence.SIMULATED)  # type: ignore[arg-type]
    files = packed(Task("evaluate", {}, asked[0], ""), Limits(1)).body["files"]  # type: ignore[index]
    assert {Path(path).name for path in files} == {"task.py", "helper.py"}


CODE = {"content": {"@0/task.py": "1", "@0/images.npy": "2"}, "package": {"numpy": "2.0"}}


@pytest.mark.parametrize(
    ("change", "another"),
    [
        ({"content": {"@0/task.py": "9", "@0/images.npy": "2"}}, True),
        ({"content": {"@0/other.py": "1", "@0/images.npy": "2"}}, True),
        ({"package": {"numpy": "2.1"}}, True),
        ({"content": {"@0/task.py": "1", "@0/images.npy": "9"}}, False),  # the samples tell it
    ],
)
def test_a_score_is_of_the_tasks_code_and_packages(
    change: dict[str, Any], another: bool, tmp_path: Path
) -> None:
    (tmp_path / "task.py").touch()
    recipe = Recipe.from_dict({"name": "net", "eval": {"task": "task.py"}}, base=tmp_path)
    build = Build(
        Job(recipe, target("l4"), PRECISIONS["int8"]),
        "tensorrt",
        (),
        PRECISIONS["fp16"],
        measured=False,
    )
    keys: list[str] = []
    steps: Any = SimpleNamespace(
        objects=Path("store/objects"),
        do=lambda step, label: keys.append(key_of(step)),
    )
    for record in (Record(CODE).to_json(), Record({**CODE, **change}).to_json()):
        build.evaluation = Collected.of(Foreign(meta={"metric": "m", "reads": record}))
        score(build, steps, "candidate", Graph(), "model.onnx", Evidence.SIMULATED)
    assert (keys[0] != keys[1]) == another


def test_a_latency_is_of_the_machine_that_it_was_measured_on() -> None:
    keys: list[str] = []

    def do(step: Any, label: str) -> Any:
        keys.append(key_of(step))
        return Timed()

    steps: Any = SimpleNamespace(objects=Path("store/objects"), do=do)
    side = Side("engine", "model.onnx", "onnxruntime", CpuSession(None))
    for machine in ({"cpu": "one"}, {"cpu": "two"}, {"cpu": "one"}):
        sides = {"engine": side, "baseline": side}
        race(Race("time", Foreign(), {}, sides, Bench(), [1], machine), steps, strict=False)
    assert keys[0] == keys[2] != keys[1]
