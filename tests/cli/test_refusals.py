"""Refusals and their messages: what is wrong, where, what to do, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

Optkit = Callable[..., Any]


@pytest.fixture
def build(optkit_here: Optkit, project: Path, store: Path) -> Optkit:
    """`optkit build` of the project for this CPU; its export and fusion are hits."""

    def run(*argv: object) -> Any:
        line = ["build", "--target", "cpu", *argv, "--json"]
        return optkit_here(*line, cwd=project, cache=store)

    return run


def refused(done: Any, code: int, *told: str) -> None:
    """The result object and stderr say the same; where and hint are given."""
    error = done.result["error"]
    assert done.code == code, done.err
    assert error["where"] and error["hint"], error
    text = f"{error['where']}: {error['message']}\n{error['hint']}"
    for part in told:
        assert part in text, text
    done.told("error: ", "hint: ", error["message"])


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("range(0, count, 32)", "()", ["source.py", "no samples"]),
        ("count=96", "count=0", ["source.py", "no samples"]),
        ('"x":', '"y":', ["source.py, sample 0", "no input 'y'", "x"]),
        ("{", "{**{'z': 1}, ", ["source.py, sample 0", "no input 'z'"]),
        ("(32, 16)", "(32, 15)", ["source.py, sample 0", "'x'", "[32, 15]", "[batch, 16]"]),
        ("(32, 16)", "(16,)", ["source.py, sample 0", "'x'", "[16]", "axis 0 is the batch"]),
        (".astype(np.float32)", "", ["source.py, sample 0", "float64", "float32", "astype"]),
        (".astype(np.float32)", ".astype(np.float32) / 0", ["sample 0", "not finite"]),
        ("rng.standard_normal((32, 16))", "np.full((32, 16), np.nan)", ["sample 0", "NaN"]),
        ('{"x": ', "[", ["source.py:6", "SyntaxError"]),
        ('yield {"x"', 'yield 1, 2, {"x"', ["source.py, sample 0", "yields tuple", "yield {"]),
        ("def samples", "def sample", ["source.py", "samples", "sample"]),
        ("rng.", "ring.", ["source.py:6", "NameError", "ring"]),
        ("import numpy", "import numpie", ["source.py:1", "ModuleNotFoundError", "numpie"]),
        ("for _", "fro _", ["source.py:5", "SyntaxError"]),
    ],
)  # fmt: skip
def test_calibration_samples_that_cannot_be_used(
    old: str, new: str, told: list[str], build: Optkit, project: Path
) -> None:
    replace(project / "source.py", old, new)
    refused(build(), 5, *told)


@pytest.mark.parametrize(("count", "code"), [(7, 5), (8, 0)])
def test_calibration_samples_that_are_few(
    count: int, code: int, build: Optkit, project: Path, optkit_here: Optkit, store: Path
) -> None:
    line = ["quantize", "--target", "cpu", "--set", f"calibration.samples={count}", "--json"]
    done = optkit_here(*line, "--out", project / "out", cwd=project, cache=store)
    assert done.code == code
    if code:
        done.told("source.py", "7 calibration samples are too few", "hint: give at least 8")
    else:
        done.told("note: only 8 calibration samples; 32 or more are usual")


def test_samples_may_not_be_both_calibration_and_evaluation(build: Optkit, project: Path) -> None:
    replace(project / "source.py", "(32, 16)", "(64, 16)")
    replace(project / "source.py", "seed=1", "seed=2")
    told = ["calibration samples are also evaluation samples", "calibration sample 0", "task.py"]
    refused(build(), 5, *told)


@pytest.mark.parametrize(
    ("old", "new", "code", "told"),
    [
        ("(outputs[\"y\"].argmax(1) == labels).astype(float)", "labels * np.nan", 5,
         ["task.py, evaluation sample 0", "nan", "finite"]),
        (".astype(float)", ".mean()", 5, ["task.py", "shape []", "one score per"]),
        ('outputs["y"]', 'outputs["z"]', 5, ["task.py, evaluation batch", "KeyError", "'z'"]),
        ("METRIC =", "METRICS =", 5, ["task.py", "METRIC"]),
        ("def score", "def scores", 5, ["task.py", "score"]),
        ("range(16)", "()", 5, ["task.py", "no samples"]),
        ("labels).astype", "labels[:-1]).astype", 5, ["task.py, evaluation batch", "score()"]),
    ],
)  # fmt: skip
def test_evaluation_tasks_that_cannot_be_used(
    old: str, new: str, code: int, told: list[str], build: Optkit, project: Path
) -> None:
    replace(project / "task.py", old, new)
    refused(build("--precision", "fp32"), code, *told)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("axes: {batch: {min: 9, opt: 8, max: 32}}", [":31:8", "min 9 is larger than opt 8"]),
        ("axes: {batch: {min: 1, opt: 64, max: 32}}", [":31:8", "opt 64 is larger than max 32"]),
        ("axes: {batch: {min: 0, opt: 1, max: 2}}", [":31:16", "axes.batch.min"]),
        ("\tbatch: 1", [":31:1", "check the YAML syntax"]),
        ("axes: {batch: [}", [":31:", "check the YAML syntax"]),
        ("axes: {}\naxes: {}", [":32:1", "occurs twice", ":31:1"]),
        ("axis: {}", [":31:1", "unknown key", "did you mean axes or"]),
        ("axes: {batch: {min: 1, opt: 1, max: 2, mix: 3}}", [":31:40", "did you mean"]),
        ("inputs: {x: {dtype: float31, shape: [batch, 16]}}", [":31:14", "float32"]),
        ("inputs: {y: {dtype: float32, shape: [batch, 16]}}", ["small.onnx", "'y'", "x"]),
        ("inputs: {x: {dtype: float16, shape: [batch, 16]}}", ["small.onnx, input 'x'", "float32"]),
        ("inputs: {x: {dtype: float32, shape: [batch, 15]}}", ["small.onnx, input", "16", "15"]),
    ],
)  # fmt: skip
def test_recipes_that_cannot_be_used(
    lines: str, told: list[str], build: Optkit, project: Path
) -> None:
    text = (project / "optkit.yaml").read_text().rstrip("\n").split("\n")
    padding = ["#"] * (30 - len(text))  # so that what is added stands in line 31
    (project / "optkit.yaml").write_text("\n".join([*text, *padding, lines, ""]))
    done = build()
    refused(done, done.code, "optkit.yaml" if told[0][0] == ":" else "", *told)
    assert done.code == (2 if told[0][0] == ":" else 5)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--shapes", "x:4x16,x:5x16"], ["--shapes", "twice"]),
        (["--min-shapes", "x:9x16"], ["--min-shapes", "min 9 is larger than opt 8"]),
        (["--min-shapes", "x:4x16", "--max-shapes", "x:2x16"], ["max 2", "opt 8"]),
        (["--opt-shapes", "x:4"], ["--opt-shapes", "2 axes, not 1", "batchx16"]),
        (["--max-shapes", "x:4x17"], ["--max-shapes", "axis 1 of x is 16, not 17"]),
        (["--shapes", "z:4x16"], ["--shapes", "'z'", "x"]),
        (["--shapes", "x=4"], ["--shapes", "name:AxBxC", "write x:4"]),
        (["--set", "calibration.method=guess"], ["--set", "minmax", "percentile"]),
        (["--set", "calibration.source=nosuch.py"], ["--set", "no such file"]),
        (["--set", "calibration.samples=0"], ["--set", "greater than or equal to 1"]),
        (["--set", "bench.secs=1"], ["--set", "unknown key", "did you mean seconds or"]),
    ],
)
def test_options_that_cannot_be_used(options: list[str], told: list[str], build: Optkit) -> None:
    refused(build(*options), 2, *told)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(
    value: float, build: Optkit, project: Path, weights: dict[str, np.ndarray]
) -> None:
    model = onnx.load(project / "small.onnx")
    for tensor in model.graph.initializer:
        if tensor.name == "w2":
            changed = weights["w2"].copy()
            changed[3, 1] = value
            tensor.CopyFrom(numpy_helper.from_array(changed, "w2"))
    onnx.save(model, project / "small.onnx")
    refused(build(), 5, "'w2'", "NaN" if np.isnan(value) else "nfinit")


@pytest.mark.slow
def test_activations_that_overflow_are_named_and_stay_float(build: Optkit, project: Path) -> None:
    replace(project / "source.py", ".astype(np.float32)", ".astype(np.float32) * 3e38")
    replace(project / "source.py", "rng.standard_normal((32, 16))", "np.full((32, 16), 1.0)")
    done = build("--json")
    assert done.code == 0 and "tensor 'x' has no range: 3e+38" in done.err
    report = json.loads((project / "artifacts/small-cpu-int8/report.json").read_text())
    rows = {row["node"]: row for row in report["quantization"]}
    assert {row["precision"] for row in rows.values()} == {"fp32"}
    assert "has no range: h" in rows["second"]["reason"]


@pytest.mark.parametrize(
    ("body", "options", "told"),
    [
        ("import os; os.abort()", [], ["killed by SIGABRT", "log"]),
        ("import time; time.sleep(60)", ["--timeout", "4"], ["longer than 4 s", "--timeout"]),
        ("x = [b'1' * 10**7 for _ in range(10**4)]", ["--memory", "400M"],
         ["more than 400 MiB", "--memory"]),
    ],
)  # fmt: skip
def test_code_that_dies_is_exit_6_with_the_end_of_its_log(
    body: str, options: list[str], told: list[str], build: Optkit, project: Path
) -> None:
    source = f"def samples():\n    print('last words', flush=True)\n    {body}\n    yield\n"
    (project / "source.py").write_text(source)
    done = build(*options)
    refused(done, 6, "collect calibration samples", *told)
    assert "last words" in done.err.partition("log:")[2]


BLOCKED = """\
import importlib.metadata, sys

GONE = {gone!r}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {{part.replace("-", "_") for part in GONE}}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

found = importlib.metadata.Distribution.from_name.__func__

@classmethod
def from_name(cls, name):
    if name in GONE:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(cls, name)

importlib.metadata.Distribution.from_name = from_name
sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture
def without(optkit_apart: Optkit, tmp_path: Path) -> Optkit:
    """`optkit …` in an environment in which some distributions were never installed."""

    def run(gone: list[str], *argv: object, **options: Any) -> Any:
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(BLOCKED.format(gone=gone))
        root = Path(__file__).resolve().parents[2]
        env = {"PYTHONPATH": f"{folder}:{root}"}
        return optkit_apart(*argv, "--json", env=env, cache=tmp_path / "cache", **options)

    return run


@pytest.mark.parametrize(
    ("gone", "target", "told"),
    [
        (["torch"], "cpu", ["torch is not installed", "optkit[torch]"]),
        (["onnxscript"], "cpu", ["onnxscript is not installed", "optkit[torch]"]),
        (["onnxruntime"], "cpu", ["onnxruntime is not installed", "optkit[cpu]"]),
        (["tensorrt-rtx", "tensorrt_rtx"], "l4", ["tensorrt-rtx is not installed", "optkit[rtx]"]),
    ],
)
def test_a_missing_library_is_exit_4_and_its_extra_is_named(
    gone: list[str], target: str, told: list[str], without: Optkit, tmp_path: Path
) -> None:
    line = ["build", "--target", target, "--out", tmp_path / "out"]
    refused(without(gone, *line), 4, "pip install", *told)
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_an_onnx_model_for_the_cpu_needs_neither_torch_nor_tensorrt(
    without: Optkit, project: Path
) -> None:
    gone = ["torch", "onnxscript", "tensorrt-rtx", "tensorrt_rtx", "tensorrt", "scikit-learn"]
    done = without(gone, "build", "--target", "cpu", "--precision", "fp32", cwd=project)
    assert done.code == 0, done.err
    assert done.result["accuracy"]["value"] > 0.99


@pytest.mark.slow
def test_both_wheels_of_onnx_runtime_are_refused(
    optkit_apart: Optkit, project: Path, tmp_path: Path
) -> None:
    for name in ("onnxruntime", "onnxruntime_gpu"):
        folder = tmp_path / f"site/{name}-1.30.0.dist-info"
        folder.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.30.0\n"
        (folder / "METADATA").write_text(metadata)
    root = Path(__file__).resolve().parents[2]
    env = {"PYTHONPATH": f"{tmp_path / 'site'}:{root}"}
    line = ["build", "--target", "cpu", "--json"]
    done = optkit_apart(*line, cwd=project, cache=tmp_path / "cache", env=env)
    refused(done, 4, "both installed", "uninstall both", "optkit[cpu]", "optkit[gpu]")
    doctor = optkit_apart("doctor", env=env)
    assert doctor.code == 4 and "uninstall both" in doctor.out
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_models_that_cannot_be_used(build: Optkit, project: Path) -> None:
    def plain(model: str) -> Any:
        return build(model, "--precision", "fp32")

    (project / "torn.onnx").write_bytes((project / "small.onnx").read_bytes()[:-20])
    (project / "empty.onnx").touch()
    (project / "prose.onnx").write_text("I am no model.\n" * 40)
    for name in ("torn", "empty", "prose"):
        refused(plain(f"{name}.onnx"), 5, f"{name}.onnx")
    refused(plain("nosuch.onnx"), 2, "nosuch.onnx", "no such file")
    refused(plain("model.pickle"), 2, "model.pickle", "file.py:factory", "x.onnx")
    refused(plain("source.py"), 2, "source.py", "names no function", "source.py:samples")
    refused(build("source.py:create"), 2, "source.py has no function or class 'create'")
    inputs = ["--set", "inputs={x: {dtype: float32, shape: [batch, 16]}}", "--precision", "fp32"]
    for model, *told in (
        ("nosuch.module:create", "nosuch.module", "importable"),
        ("source.py:samples", "samples", "not an nn.Module"),
    ):
        refused(build(model, *inputs), 5, *told)
