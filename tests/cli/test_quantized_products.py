""" "INT8" means that something is in INT8: `quantize` and `build` say how much is, and why the rest
is not, and with --strict they fail if nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

Optkit = Callable[..., Any]

THIN = """<ir_version: 10, opset_import: ["" : 21]>
thin (float[batch,3,8,8] x) => (float[batch,2,8,8] y) {
    [first] h = Conv <pads=[1,1,1,1]> (x, w_1)
    [act] r = Relu (h)
    [second] y = Conv (r, w_2)
}"""

FACTORS = """<ir_version: 10, opset_import: ["" : 21]>
factors (float[batch,16] x) => (float[8,batch] y) {
    [scaled] h = Gemm <alpha=0.5, beta=2.0, transB=1> (x, w_1, b_1)
    [act] r = Tanh (h)
    [left] l = Gemm <transB=1> (w_2, r)
    [act2] y = Tanh (l)
}"""

SOURCE = """import numpy as np

def samples(shape, rows=64):
    rng = np.random.default_rng(1)
    yield {"x": rng.standard_normal((rows, *shape)).astype(np.float32)}
"""


def project(folder: Path, text: str, shape: list[int], **constants: tuple[int, ...]) -> Path:
    folder.mkdir()
    model = ir.to_proto(ir.from_onnx_text(text))
    rng = np.random.default_rng(0)
    for name, size in constants.items():
        numbers = rng.standard_normal(size).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    onnx.save(model, folder / "model.onnx")
    (folder / "source.py").write_text(SOURCE)
    recipe = {
        "name": "model", "model": {"path": "model.onnx"},
        "calibration": {"source": "source.py", "args": {"shape": shape}},
        "bench": {"batches": [1], "seconds": 0.05, "warmup_seconds": 0.02},
    }  # fmt: skip
    (folder / "optkit.yaml").write_text(json.dumps(recipe))
    return folder


@pytest.fixture
def thin(tmp_path: Path) -> Path:
    """Two convolutions with fewer channels than a CPU multiplies faster in integers."""
    return project(tmp_path / "thin", THIN, [3, 8, 8], w_1=(3, 3, 3, 3), w_2=(2, 3, 1, 1))


def test_quantize_says_that_nothing_is_in_int8(
    thin: Path, store: Path, optkit_here: Optkit
) -> None:
    asked = ("quantize", "-t", "cpu", "-p", "int8")
    done = optkit_here(*asked, "-o", "told", cwd=thin, cache=store)
    assert done.code == 0, done.err
    assert "0 of 2 products in INT8" in done.out and "in floats: 2 (fewer than" in done.err
    strict = optkit_here(*asked, "--strict", "--json", "-o", "strict", cwd=thin, cache=store)
    found = json.loads(strict.out)["quantized"]
    assert strict.code == 3
    assert (found["products"], found["quantized"]) == (2, 0)
    assert found["by_precision"] == {"fp32": 2}
    assert found["in_float"][0]["products"] == 2 and found["in_float"][0]["node"] == "first"


@pytest.mark.slow
def test_build_does_not_speak_of_a_gain_of_nothing(
    thin: Path, store: Path, optkit_here: Optkit
) -> None:
    done = optkit_here("build", "-t", "cpu", "-p", "int8", "--json", cwd=thin, cache=store)
    result = json.loads(done.out)
    assert done.code == 0, done.err
    sentence = result["recommendation"]["sentence"]
    assert sentence.startswith("Nothing is quantized: 0 of 2 products in INT8 on ")
    assert sentence.endswith("Ship FP32 instead.")
    assert result["quantized"]["quantized"] == 0
    again = optkit_here("build", "-t", "cpu", "-p", "int8", "--strict", cwd=thin, cache=store)
    assert again.code == 3
    assert "no gain is shown" not in (again.out + again.err).lower()
    other = optkit_here("build", "-t", "cpu", "-p", "fp32", "--json", cwd=thin, cache=store)
    assert "quantized" not in json.loads(other.out)


@pytest.mark.parametrize(("target", "precision"), [("cpu", "int8"), ("l4", "int8"), ("l4", "fp8")])
def test_factors_and_weights_on_the_left_are_quantized(
    target: str, precision: str, tmp_path: Path, store: Path, optkit_here: Optkit
) -> None:
    folder = project(tmp_path / "factors", FACTORS, [16], w_1=(12, 16), b_1=(12,), w_2=(8, 12))
    done = optkit_here("quantize", "-t", target, "-p", precision, "--json", "--strict", "-o", "out",
                       cwd=folder, cache=store)  # fmt: skip
    assert done.code == 0, done.err
    assert json.loads(done.out)["quantized"]["by_precision"] == {precision: 2}
