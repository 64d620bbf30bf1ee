"""Precisions mixed by patterns in a recipe, up to the layer list of the compiler."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optkit.facts.errors import RecipeError
from optkit.ground.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
NODES = ("first", "second", "third", "last")
SOURCE = """\
import numpy as np

def samples():
    rng = np.random.default_rng(1)
    for _ in range(2):
        yield {"x": rng.standard_normal((32, 64)).astype(np.float32)}
"""
RECIPE = """\
name: mixed
model: {path: small.onnx}
calibration: {source: source.py, samples: 64}
quantization:
  weights: rtn
  nodes:
    "*": fp32
    "[ft]*": int8
    "sec*": int4
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """x → four products with a Relu between them → y"""
    rng, read = np.random.default_rng(0), "x"
    nodes, weights = [], []
    for index, name in enumerate(NODES):
        w = rng.standard_normal((64, 64)).astype(np.float32) / 8
        weights.append(numpy_helper.from_array(w, f"w{index}"))
        made = f"m{index}" if name != "last" else "y"
        nodes.append(helper.make_node("MatMul", [read, f"w{index}"], [made], name))
        read = f"r{index}"
        if name != "last":
            nodes.append(helper.make_node("Relu", [made], [read], f"relu{index}"))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 64]) for name in ("x", "y")
    ]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "small.onnx"
    )
    (tmp_path / "source.py").write_text(SOURCE)
    (tmp_path / "optkit.yaml").write_text(RECIPE)
    return tmp_path


def landing(project: Path, where: str, precision: str) -> dict[str, Any]:
    """What `optkit compile` says of the planned nodes."""
    environment = {"PYTHONPATH": str(ROOT), "OPTKIT_CACHE": str(project / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", "from optkit.cli import main; main()", "compile", "--json",
         "--target", where, "--precision", precision, "--out", "out"],
        cwd=project, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["details"]["engine"]["landing"]
    return found


@pytest.mark.slow
def test_int8_int4_and_fp32_land_each_as_itself_on_a_processor(project: Path) -> None:
    found = landing(project, "cpu", "int8")
    rows = {row["node"]: (row["planned"], row["landed"]) for row in found["rows"]}
    assert rows == {"first": ("int8", True), "second": ("int4", True), "third": ("int8", True)}
    assert (found["planned"], found["landed"]) == (3, 3)
    assert found["by_dtype"] == {"uint8": 2, "int4": 1}


@pytest.mark.slow
def test_fp8_int4_and_fp16_land_each_as_itself_on_a_gpu(project: Path) -> None:
    try:
        importlib.metadata.version("tensorrt-rtx")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("TensorRT-RTX is not installed")
    mixed = RECIPE.replace("fp32", "fp16").replace("int8", "fp8")
    (project / "optkit.yaml").write_text(mixed)
    found = landing(project, "l4", "fp8")
    rows = {row["node"]: (row["planned"], row["landed"]) for row in found["rows"]}
    assert rows == {"first": ("fp8", True), "second": ("int4", True), "third": ("fp8", True)}
    assert found["by_dtype"] == {"float8e4m3fn": 2, "int4": 1}


@pytest.mark.parametrize(("wrong", "near"), [("imt4", "int4"), ("int8-weight", "int8-weight-only")])
def test_an_unknown_precision_is_reported_with_its_line_and_the_nearest_name(
    project: Path, wrong: str, near: str
) -> None:
    place = project / "optkit.yaml"
    place.write_text(RECIPE.replace("int4", wrong))
    with pytest.raises(RecipeError) as caught:
        Recipe.load(place)
    line = 1 + RECIPE.splitlines().index('    "sec*": int4')
    assert str(caught.value.where).startswith(f"{place}:{line}:")
    assert f"{wrong!r} is not one of" in str(caught.value)
    assert str(caught.value.hint).startswith(f"did you mean {near}?")
