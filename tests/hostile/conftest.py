"""An artifact with every part that a hostile one may change, and steps that run in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optkit.facts.tensors import TensorInfo
from optkit.ground.artifact import EngineFile, Manifest, write
from optkit.ground.execute.task import Task
from optkit.ground.execute.warm_workers import Workers
from optkit.road.steps import perform
from tests.hostile import onnx_files
from tests.report import conftest as reports


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for `l4` with the report of a build, whose lists have one row each."""
    model = onnx_files.plain_model()
    model.ir_version = 10
    report = reports.one_row_each(reports.build(suspect=True))
    recipe = {"name": "net", "axes": {"batch": {"min": 1, "opt": 8, "max": 32}}}
    report["provenance"]["recipe"] = recipe
    files = {
        "model.onnx": model.SerializeToString(), "baseline/model.onnx": model.SerializeToString(),
        "report.json": json.dumps(report).encode(), "recipe.yaml": b"name: net\n",
        "model.engine": b"engine",
    }  # fmt: skip
    tensors = (TensorInfo("x", "float32", (4,)),), (TensorInfo("y", "float32", (4,)),)
    manifest = Manifest(
        "net", "l4", "int8", "d" * 64, recipe, *tensors, {"onnx": "1.23.2"}, report["result"],
        {"evaluation": {"source": "task.py", "args": {}, "samples": 4, "digest": "e" * 64}},
        EngineFile("tensorrt-rtx", "model.engine"),
    )  # fmt: skip
    return write(tmp_path_factory.mktemp("sound"), manifest, files).path


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that read the artifact's graphs, which are sound here, need no child."""

    def run(self: Workers, task: Task, *limits: Any, **more: Any) -> dict[str, Any]:
        inputs = {name: Path(path) for name, path in task.inputs.items()}
        out = Path(task.out)
        return perform(task.step, inputs, task.params, out, lambda *told: None)

    monkeypatch.setattr(Workers, "__call__", run)
