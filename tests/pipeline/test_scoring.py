"""The code of a task that goes with an evaluation to a node."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from optkit.execute.local import Limits
from optkit.execute.node import packed
from optkit.pipeline import Build, Foreign, Job
from optkit.pipeline.judging import score
from optkit.recipe import Recipe
from optkit.runtime import Evidence
from optkit.store import digest_file
from optkit.target import target


def test_a_node_needs_what_the_task_imports_and_not_the_samples_that_it_read(
    tmp_path: Path,
) -> None:
    for name in ("task.py", "helper.py", "images.npy"):
        (tmp_path / name).write_text(name)
    recipe = Recipe.from_dict({"name": "net", "eval": {"task": str(tmp_path / "task.py")}},
                              base=tmp_path)  # fmt: skip
    build = Build(Job(recipe, target("l4"), "int8"), "tensorrt", (), "fp16", measured=False)
    read = {str(path): digest_file(path) for path in tmp_path.iterdir()}
    build.entries["evaluation"] = Foreign(meta={"metric": "m", "reads": {"content": read}})
    asked: list[dict[str, Any]] = []
    steps = SimpleNamespace(
        objects=Path("store/objects"),
        step_reading_code=lambda kind, label, inputs, params, here, **rest: asked.append(
            {**params, **here}
        ),
    )
    score(build, steps, "candidate", Foreign(), "model.onnx", Evidence.SIMULATED)  # type: ignore[arg-type]
    task = {"step": "evaluate", "inputs": {}, "params": asked[0], "out": ""}
    files = packed(task, Limits(1))["files"]
    assert {Path(path).name for path in files} == {"task.py", "helper.py"}
