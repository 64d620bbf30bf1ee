"""The command line for real: in this process where that is enough, as a process of its own where
streams, signals or imports matter. Caches that several tests share are made once per test run.

`project` is a user's folder with a small ONNX model, whose chain takes seconds; the examples of
this repository stand for the whole road.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from jsonschema import Draft202012Validator
from onnx import TensorProto, helper, numpy_helper
from referencing import Registry, Resource

import optkit.report
from optkit import cli

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from optkit.cli import main; main()"]
SCHEMAS = {
    schema["properties"]["schema"]["const"]: schema
    for file in (Path(optkit.report.__file__).parent / "schemas").glob("result*.json")
    for schema in [json.loads(file.read_text())]
}
REGISTRY: Registry[Any] = Registry().with_resources(
    (schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS.values()
)
# An environment as a service has it: no terminal, nothing of the test run.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Ran:
    """What one command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def result(self) -> dict[str, Any]:
        """The result object (or several), valid against its published schema."""
        found = self.json
        Draft202012Validator(SCHEMAS[found["schema"]], registry=REGISTRY).validate(found)
        return found

    def told(self, *parts: str) -> Ran:
        """Every part is on stderr, and no traceback."""
        for part in parts:
            assert part in self.err, self.err
        assert "Traceback" not in self.err, self.err
        return self


Optkit = Callable[..., Ran]


def environment(cache: Path | None, **changes: str | None) -> dict[str, str]:
    found = {key: os.environ[key] for key in INHERITED if key in os.environ}
    found |= {"PYTHONPATH": str(ROOT)} | ({} if cache is None else {"OPTKIT_CACHE": str(cache)})
    found |= {key: value for key, value in changes.items() if value is not None}
    return {key: value for key, value in found.items() if changes.get(key, value) is not None}


@pytest.fixture
def optkit_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Optkit:
    """`optkit …` in this process."""

    def run(*argv: object, cwd: Path | None = None, cache: Path | None = None) -> Ran:
        with monkeypatch.context() as patch:
            patch.setattr("signal.signal", lambda number, handler: None)
            patch.setattr(sys, "stderr", sys.stderr)  # the command wraps it
            patch.chdir(cwd or ROOT)
            if cache is not None:
                patch.setenv("OPTKIT_CACHE", str(cache))
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                cli.main([str(part) for part in argv])
        found = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, found.out, found.err)

    return run


@pytest.fixture
def optkit_apart() -> Optkit:
    """`optkit …` as a process of its own. `env`: changes, None removes; others go to subprocess."""

    def run(
        *argv: object,
        cwd: Path | None = None,
        cache: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        command: list[str] = COMMAND,
        **options: Any,
    ) -> Ran:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        done = subprocess.run(
            [*command, *map(str, argv)], cwd=cwd or ROOT, env=environment(cache, **(env or {})),
            stdin=subprocess.DEVNULL, text=True, timeout=300, check=False, **streams,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout or "", done.stderr or "")

    return run


@pytest.fixture
def optkit_started() -> Callable[..., subprocess.Popen[str]]:
    """`optkit …` as a process of its own that is still running."""

    def start(*argv: object, cwd: Path, cache: Path, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *map(str, argv)], cwd=cwd, env=environment(cache), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    return start


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that all workers of one test run share; the store in it is safe for that."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / name
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that fills as tests go. For whatever does not depend on what is in it before."""
    return shared_folder(tmp_path_factory, "shared-cache")


@pytest.fixture(scope="session")
def built(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artifact of the main job; every step of it is in `store`."""
    out = tmp_path_factory.mktemp("main-job")
    done = subprocess.run(
        [*COMMAND, "build", "--target", "l4", "--precision", "int8", "--json", "--out", out],
        cwd=ROOT, env=environment(store), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (out / "result.json").write_text(done.stdout)
    return out


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
  seconds: 0.2
  warmup_seconds: 0.1
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
    store: Path, weights: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same for tests that leave it as it is, built for `cpu` in int8, all steps in `store`."""
    folder = write_project(tmp_path_factory.mktemp("small") / "project", weights)
    done = subprocess.run(
        [*COMMAND, "build", "--target", "cpu", "--json"],
        cwd=folder, env=environment(store), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
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
