"""`optkit build` of a graph that another tool has quantized: its codes stay, and it is compared
with the graph as it was given, which runs on a CPU as the baseline. On a GPU, the baseline is its
float graph."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import optkit
from optkit.craft import foreign
from optkit.craft.foreign.qdq_parameters import DEQUANTIZE, QUANTIZE, is_pair
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.measurement import GIVEN_GRAPH
from optkit.ground import graph, runtimes
from optkit.ground.workspace import Workspace
from optkit.verbs import api
from tests.foreign.test_foreign import GRAPHS, loaded, pictures
from tests.plain_tools import accepted

FLOAT = """<ir_version: 8, opset_import: ["" : 21]> agraph (float[n, 4] x) => (float[n, 4] y)
<float[4, 4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> { y = MatMul(x, w) }"""


def scales(model: ir.Model) -> list[float]:
    """Those of activations, in rising order."""
    found = []
    for node in model.graph:
        if node.op_type == QUANTIZE:
            scale = graph.array(node.inputs[1])
            assert scale is not None and scale.size == 1
            found.append(float(scale.reshape(())))
    return sorted(found)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(cache=tmp_path_factory.mktemp("cache"))


def agreement(labels: np.ndarray, pixels: np.ndarray) -> Any:
    def evaluate(session: Any) -> np.ndarray:
        rows = [session.run({"x": picture[None]})["y"].argmax() for picture in pixels]
        same: np.ndarray = (np.array(rows) == labels).astype(float)
        return same

    return evaluate


TASK = """import numpy as np

METRIC = "largest logit"

def samples():
    pixels = np.random.default_rng(5).normal(size=(60, 3, 16, 16)).astype(np.float32)
    for one in pixels:
        yield {"x": one[None]}, np.zeros(1)

def score(outputs, labels):
    return outputs["y"].max(axis=1)
"""


@pytest.mark.slow
def test_the_repaired_graph_is_built_with_its_own_scales(
    workspace: Workspace, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    (tmp_path / "task.py").write_text(TASK)
    shutil.copy(GRAPHS / "ort_qdq.onnx", tmp_path)
    recipe = "{name: given, model: {path: ort_qdq.onnx}, eval: {task: task.py}}"
    (tmp_path / "optkit.yaml").write_text(recipe)
    built = optkit.build(
        target="l4", recipe=tmp_path / "optkit.yaml", out=tmp_path / "out", workspace=workspace
    )
    result = built.result
    # the drop is that from the given graph; the float graph is beside it
    with runtimes.simulator().session(
        GRAPHS / "ort_qdq.onnx", runtimes.SessionOptions(1)
    ) as session:
        pixels = np.random.default_rng(5).normal(size=(60, 3, 16, 16)).astype(np.float32)
        score = float(np.mean([session.run({"x": one[None]})["y"].max() for one in pixels]))
    assert result["baseline"]["accuracy"]["value"] == pytest.approx(score, rel=1e-5)
    change = score - result["accuracy"]["value"]
    assert result["drop"]["value"] == pytest.approx(change / abs(score), abs=1e-5)
    assert [one["precision"] for one in result["references"]] == ["fp32"]
    assert f"60 samples, baseline: {GIVEN_GRAPH}" in (built.path / "report.html").read_text()
    assert accepted(built.path / "model.onnx") and accepted(built.path / "baseline" / "model.onnx")
    assert result["precision"] == "int8" and result["baseline"]["precision"] == "fp16"
    landing = result["engine"]["landing"]
    assert landing["landed"] == landing["planned"] == 5
    assert result["fidelity"]["sqnr_db"] > 35
    assert result["fidelity"]["reference"] == GIVEN_GRAPH
    assert "quantized by another tool" in (built.path / "report.html").read_text()
    expected = loaded("ort_qdq")
    foreign.repair(expected)
    candidate = graph.load(built.path / "model.onnx")
    np.testing.assert_allclose(scales(candidate), scales(expected), rtol=1e-3)
    baseline = graph.load(built.path / "baseline" / "model.onnx")
    assert not any(is_pair(node) for node in baseline.graph)


@pytest.mark.slow
def test_a_cpu_gets_the_numbers_as_they_are_and_the_gate_is_judged(
    workspace: Workspace, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(5).normal(size=(400, 3, 16, 16)).astype(np.float32)
    model = loaded("ort_qoperator")
    foreign.normal_form(model)
    expected = scales(model)
    with runtimes.simulator().session(
        GRAPHS / "ort_qoperator.onnx", runtimes.SessionOptions(1)
    ) as session:
        labels = np.array([session.run({"x": one[None]})["y"].argmax() for one in pixels])
    built = optkit.build(
        GRAPHS / "ort_qoperator.onnx", target="cpu", evaluate=agreement(labels, pixels),
        recipe={"name": "given", "gates": {"max_drop": "50%"}}, out=tmp_path, workspace=workspace,
    )  # fmt: skip
    result = built.result
    assert result["baseline"]["precision"] == "fp32"
    assert result["baseline"]["accuracy"]["value"] == 1.0  # the given graph itself
    assert result["fidelity"]["reference"] == GIVEN_GRAPH
    assert "FP32" not in result["recommendation"]["sentence"]
    baseline = graph.load(built.path / "baseline" / "model.onnx")
    assert any(node.op_type == "QLinearConv" for node in baseline.graph)
    assert result["gate"]["verdict"] == "pass"  # also where 16-bit sums saturate
    candidate = graph.load(built.path / "model.onnx")
    np.testing.assert_allclose(scales(candidate), expected, rtol=1e-6)
    kept = {
        node.inputs[2].dtype for node in candidate.graph
        if node.op_type == QUANTIZE and node.inputs[2] is not None
    }  # fmt: skip
    assert kept == {ir.DataType.UINT8}


@pytest.mark.slow
def test_another_precision_is_refused_and_a_float_one_builds_the_float_graph(
    workspace: Workspace, tmp_path: Path
) -> None:
    file = GRAPHS / "pt2e.onnx"
    with pytest.raises(UsageError, match="has quantized the graph to int8") as caught:
        optkit.build(file, target="l4", precision="fp8", out=tmp_path, workspace=workspace)
    assert caught.value.exit_code == 2 and "float model" in str(caught.value.hint)
    with pytest.raises(UsageError, match="nothing to search"):
        api.tune(file, target="cpu", out=tmp_path, workspace=workspace)
    api.quantize(
        file, target="cpu", precision="fp32", out=tmp_path / "float", workspace=workspace
    )  # fmt: skip
    model = graph.load(tmp_path / "float" / "model.onnx")
    assert not any(is_pair(node) for node in model.graph)


RESIDUAL = """<ir_version: 8, opset_import: ["" : 19]>
residual (float[n, 16] x) => (float[n, 16] y) <float s = {0.05}, int8 z = {0}> {
    [first] a = MatMul (x, w_1)
    [act] r = Relu (a)
    [second] b = MatMul (r, w_2)
    [sum] h = Add (b, x)
    [q] c = QuantizeLinear (h, s, z)
    [dq] d = DequantizeLinear (c, s, z)
    [third] e = MatMul (d, w_3)
    [last] y = Add (e, d)
}"""


@pytest.mark.parametrize("target", ["cpu", "l4"])
def test_pairs_on_values_alone_do_not_make_a_model_quantized(
    target: str, workspace: Workspace, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    model = ir.to_proto(ir.from_onnx_text(RESIDUAL))
    for name in ("w_1", "w_2", "w_3"):
        numbers = rng.standard_normal((16, 16)).astype(np.float32) / 4
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    onnx.save(model, tmp_path / "residual.onnx")
    (tmp_path / "source.py").write_text(SAMPLES)
    asked: dict[str, Any] = {"target": target, "precision": "int8", "workspace": workspace}
    with pytest.raises(InputRefused, match="needs calibration samples"):
        api.quantize(tmp_path / "residual.onnx", out=tmp_path / "none", **asked)
    recipe = "{name: residual, model: {path: residual.onnx}, calibration: {source: source.py}}"
    (tmp_path / "optkit.yaml").write_text(recipe)
    made = api.stage_files(
        "quantize", out=tmp_path / "out", recipe=tmp_path / "optkit.yaml", **asked
    )
    assert made.quantized is not None
    assert (made.quantized.quantized, made.quantized.products) == (3, 3)


SAMPLES = """import numpy as np

def samples():
    yield {"x": np.random.default_rng(1).standard_normal((64, 16)).astype(np.float32)}
"""


@pytest.mark.slow
def test_a_float_file_still_needs_samples(workspace: Workspace, tmp_path: Path) -> None:
    graph.save(ir.from_onnx_text(FLOAT), tmp_path / "float.onnx")
    with pytest.raises(InputRefused, match="needs calibration samples"):
        optkit.build(tmp_path / "float.onnx", target="cpu", out=tmp_path, workspace=workspace)


@pytest.mark.parametrize("name", ["aimet", "nncf", "ort_qdq", "ort_qoperator", "pt2e"])
def test_ranges_are_those_of_the_pairs_that_products_read(name: str) -> None:
    model = loaded(name)
    found = foreign.ranges(model)
    asked = [one for one in foreign.requested_products(model) if one.activation is not None]
    assert set(found) == {one.node for one in asked} and len(found) == 5
    assert all(low <= 0 < high for _, low, high in found.values())
    pixels = pictures(name)
    source, low, high = found[asked[0].node]
    assert source == "x" and low < -1 and high > 1
    assert (np.mean((pixels < low) | (pixels > high))) < 0.01


def test_a_product_without_codes_has_no_range() -> None:
    model = ir.from_onnx_text(FLOAT)
    graph.ensure_names(model)
    assert foreign.ranges(model) == {}


def test_dequantized_constants_have_no_range() -> None:
    model = loaded("ort_dynamic")
    assert foreign.ranges(model) == {}
    assert not any(node.op_type == DEQUANTIZE for node in model.graph)  # it did not change
