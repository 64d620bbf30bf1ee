"""A user's folder with a small ONNX model, one layer of which quantizes badly, and `optkit`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SOURCE = """\
import numpy as np

def samples(count=96, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(0, count, 32):
        yield {"x": rng.standard_normal((32, 64)).astype(np.float32)}
"""

TASK = """\
from pathlib import Path
import numpy as np

METRIC = "agreement"
WEIGHTS = np.load(Path(__file__).with_name("weights.npz"))

def samples(seed=2):
    rng = np.random.default_rng(seed)
    for _ in range(16):
        x = rng.standard_normal((64, 64)).astype(np.float32)
        y = np.maximum(x @ WEIGHTS["w0"] + WEIGHTS["b0"], 0)
        y = np.maximum(y @ WEIGHTS["w1"] + WEIGHTS["b1"], 0)
        yield {"x": x}, (y @ WEIGHTS["w2"] + WEIGHTS["b2"]).argmax(1)

def score(outputs, labels):
    return (outputs["y"].argmax(1) == labels).astype(float)
"""

RECIPE = """\
name: small
model: {path: small.onnx}
calibration: {source: source.py, samples: 64}
eval: {task: task.py}
gates: {max_drop: 5%}
bench: {batches: [8], seconds: 0.05, warmup_seconds: 0.02}
"""


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w0": (64, 128), "b0": (128,), "w1": (128, 128), "b1": (128,), "w2": (128, 8)}
    found = {n: rng.standard_normal(s).astype(np.float32) / 8 for n, s in shapes.items()}
    found["b2"] = np.zeros(8, np.float32)
    found["w1"] *= 10 ** rng.uniform(-1.5, 1.0, (128, 1)).astype(np.float32)
    return found


def model(arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    """x [batch, 64] → three times: · w + b, relu between → y [batch, 8]"""
    nodes, value = [], "x"
    for i in range(3):
        made = "y" if i == 2 else f"a{i}"
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"], f"layer{i}"))
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [made], f"bias{i}"))
        value = made
        if i < 2:
            nodes.append(helper.make_node("Relu", [made], [f"h{i}"], f"relu{i}"))
            value = f"h{i}"
    graph = helper.make_graph(
        nodes, "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@dataclass(frozen=True)
class Project:
    """The folder, and a store of its own."""

    folder: Path
    cache: Path
    begin: Callable[..., subprocess.Popen[str]]
    command: Callable[..., Any]

    def start(self, *argv: str) -> subprocess.Popen[str]:
        return self.begin(*argv, cwd=self.folder, cache=self.cache)

    def run(self, *argv: str) -> Any:
        return self.command(*argv, cwd=self.folder, cache=self.cache)


def write(folder: Path) -> Path:
    folder.mkdir(parents=True)
    arrays = weights()
    onnx.save(model(arrays), folder / "small.onnx")
    np.savez(folder / "weights.npz", **arrays)
    (folder / "source.py").write_text(SOURCE)
    (folder / "task.py").write_text(TASK)
    (folder / "optkit.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="session")
def make(
    optkit_started: Callable[..., subprocess.Popen[str]], optkit_apart: Callable[..., Any]
) -> Callable[[Path], Project]:
    """A project in a new folder."""
    return lambda root: Project(
        write(root / "project"), root / "cache", optkit_started, optkit_apart
    )


@pytest.fixture(scope="session")
def project(make: Callable[[Path], Project], tmp_path_factory: pytest.TempPathFactory) -> Project:
    """For tests that share what is in the store."""
    return make(tmp_path_factory.mktemp("tuning"))


@pytest.fixture
def fresh(make: Callable[[Path], Project], tmp_path: Path) -> Callable[[str], Project]:
    """A folder and an empty store, by name."""
    return lambda name: make(tmp_path / name)
