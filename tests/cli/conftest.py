"""Fixtures of the command-line tests: caches that are shared within a test run, and projects.

`project` is a user's folder with a small ONNX model, whose build takes seconds. The examples of
this repository are used for complete builds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from filelock import FileLock
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import MainJob, shared_folder

Optkit = Callable[..., Any]


@pytest.fixture(scope="session")
def store(main_job: MainJob, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has every step of the main job and fills as tests go, shared by all workers. For
    whatever does not depend on what is in it before."""
    folder = shared_folder(tmp_path_factory, "shared-cache")
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            shutil.copytree(main_job.cache, folder)
    return folder


@pytest.fixture(scope="session")
def built(main_job: MainJob, store: Path) -> Path:
    """The folder with the artifact of the main job; every step of it is in `store`."""
    return main_job.out


SOURCE = """\
import numpy as np

def samples(count=96, seed=1, **broken):
    rng = np.random.default_rng(seed)
    for _ in range(0, count, 32):
        yield {"x": rng.standard_normal((32, 16)).astype(np.float32)}
"""

TASK = """\
from pathlib import Path
import numpy as np

METRIC = "agreement"
WEIGHTS = np.load(Path(__file__).with_name("weights.npz"))

def samples(seed=2):
    rng = np.random.default_rng(seed)
    for _ in range(16):
        x = rng.standard_normal((64, 16)).astype(np.float32)
        hidden = np.maximum(x @ WEIGHTS["w1"] + WEIGHTS["b1"], 0)
        yield {"x": x}, (hidden @ WEIGHTS["w2"] + WEIGHTS["b2"]).argmax(1)

def score(outputs, labels):
    return (outputs["y"].argmax(1) == labels).astype(float)
"""

RECIPE = """\
name: small

model:
  path: small.onnx

calibration:
  source: source.py
  samples: 64

eval:
  task: task.py

gates:
  max_drop: 5%

bench:
  batches: [1, 8]
  seconds: 0.05
  warmup_seconds: 0.02
"""


def small_model(weights: Mapping[str, np.ndarray], opset: int = 21) -> onnx.ModelProto:
    """x [batch, 16] → relu(x·w1 + b1)·w2 + b2 → y [batch, 4]"""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"], "first"),
        helper.make_node("Add", ["m1", "b1"], ["a1"], "bias1"),
        helper.make_node("Relu", ["a1"], ["h"], "relu"),
        helper.make_node("MatMul", ["h", "w2"], ["m2"], "second"),
        helper.make_node("Add", ["m2", "b2"], ["y"], "bias2"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.fixture(scope="session")
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w1": (16, 32), "b1": (32,), "w2": (32, 4), "b2": (4,)}
    return {n: rng.standard_normal(s).astype(np.float32) / 4 for n, s in shapes.items()}


@pytest.fixture
def project(tmp_path: Path, weights: dict[str, np.ndarray]) -> Path:
    """A user's folder: model, calibration source, task, and the recipe optkit.yaml."""
    return write_project(tmp_path / "project", weights)


@pytest.fixture(scope="session")
def small(
    store: Path,
    weights: dict[str, np.ndarray],
    optkit_apart: Optkit,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The same for tests that leave it as it is, built for `cpu` in int8, all steps in `store`."""
    folder = write_project(tmp_path_factory.mktemp("small") / "project", weights)
    done = optkit_apart("build", "--target", "cpu", "--json", cwd=folder, cache=store)
    assert done.code == 0, done.err
    return folder


def write_project(folder: Path, weights: Mapping[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True)
    onnx.save(small_model(weights), folder / "small.onnx")
    np.savez(folder / "weights.npz", **weights)
    (folder / "source.py").write_text(SOURCE)
    (folder / "task.py").write_text(TASK)
    (folder / "optkit.yaml").write_text(RECIPE)
    return folder


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below `folder` with modification time and size: what a dry run must not change."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in sorted(folder.rglob("*"))
    }
