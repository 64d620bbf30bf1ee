"""Graphs that ONNX Runtime's optimizer has saved are recognized at the door, and those of exporters
with operators of com.microsoft are not taken for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from optkit.craft import foreign
from optkit.facts.errors import InputRefused
from optkit.ground.workspace import Workspace
from optkit.verbs import api

CONV = """<ir_version: 8, opset_import: ["" : 17]>
conv (float[n,8,8,8] x) => (float[n,16,8,8] y) {
    [first] a = Conv <pads=[1,1,1,1]> (x, w_1)
    [act] r = Relu (a)
    [second] b = Conv <pads=[1,1,1,1]> (r, w_2)
    [act2] y = Relu (b)
}"""
SCORES = """<ir_version: 8, opset_import: ["" : 17]>
scores (float[n,8,16] x) => (float[n,8,8] y) <float s = {0.25}> {
    [q] a = MatMul (x, w_1)
    [k] b = MatMul (x, w_2)
    [t] c = Transpose <perm=[0,2,1]> (b)
    [qk] d = MatMul (a, c)
    [scaled] y = Mul (d, s)
}"""
EXPORTED = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
exported (float[n,s,64] x, int32[n] k, int32 t, float[n,1,p,32] c, float[n,1,p,32] v)
=> (float[n,s,64] y) {
    [norm] a, b, d, e = com.microsoft.SkipSimplifiedLayerNormalization (x, x, g)
    [qkv] q = com.microsoft.MatMulNBits <K=64, N=128, bits=4, block_size=32> (a, w, z)
    [gqa] y, pk, pv = com.microsoft.GroupQueryAttention <num_heads=2, kv_num_heads=1>
        (q, , , c, v, k, t)
}"""


def written(path: Path, text: str, **shapes: tuple[int, ...]) -> Path:
    rng = np.random.default_rng(0)
    model = ir.to_proto(ir.from_onnx_text(text))
    for name, shape in shapes.items():
        numbers = rng.standard_normal(shape).astype(np.float32) / 4
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    onnx.save(model, path)
    return path


def saved(path: Path, level: str) -> Path:
    """The file as ONNX Runtime saves it at a level of optimization."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(path.with_stem(level))
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return path.with_stem(level)


def found(path: Path) -> tuple[dict[str, int], int]:
    return foreign.optimized(ir.load(path))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def conv(tmp_path: Path) -> Path:
    return written(tmp_path / "conv.onnx", CONV, w_1=(16, 8, 3, 3), w_2=(16, 16, 3, 3))


def test_fused_and_blocked_convolutions_are_counted(conv: Path) -> None:
    assert found(conv) == found(saved(conv, "ORT_ENABLE_BASIC")) == ({}, 0)
    assert found(saved(conv, "ORT_ENABLE_EXTENDED")) == ({"FusedConv": 2}, 2)
    blocked, products = found(saved(conv, "ORT_ENABLE_ALL"))
    assert blocked["Conv"] == products == 2 and "ReorderOutput" in blocked


def test_a_product_of_two_activations_holds_no_weight(tmp_path: Path) -> None:
    file = written(tmp_path / "scores.onnx", SCORES, w_1=(16, 16), w_2=(16, 16))
    assert found(saved(file, "ORT_ENABLE_EXTENDED")) == ({"FusedMatMul": 1}, 0)


def test_operators_that_exporters_write_are_no_sign_of_an_optimizer() -> None:
    assert foreign.optimized(ir.from_onnx_text(EXPORTED)) == ({}, 0)


@pytest.mark.parametrize(
    ("target", "why"),
    [("l4", "has no such operators"), ("cpu", "the weights of 2 cannot be quantized")],
)
def test_it_is_refused_where_it_cannot_be_quantized(
    target: str, why: str, conv: Path, workspace: Workspace, tmp_path: Path
) -> None:
    file = saved(conv, "ORT_ENABLE_EXTENDED")
    with pytest.raises(InputRefused, match=why) as caught:
        api.quantize(file, target=target, precision="int8", out=tmp_path / "o", workspace=workspace)
    assert caught.value.exit_code == 5 and "2 FusedConv" in caught.value.message
    assert caught.value.where == str(file)
    assert caught.value.hint == "give the graph from before the optimization"


def test_doctor_does_not_say_that_a_build_quantizes_it(conv: Path, workspace: Workspace) -> None:
    with pytest.raises(InputRefused, match="has rewritten the graph") as caught:
        api.examine(saved(conv, "ORT_ENABLE_EXTENDED"), target="cpu", workspace=workspace)
    assert "from before the optimization" in str(caught.value.hint)


def test_in_floats_a_cpu_runs_it_with_a_note(
    conv: Path, workspace: Workspace, tmp_path: Path
) -> None:
    out = api.fuse(saved(conv, "ORT_ENABLE_EXTENDED"), out=tmp_path / "o", workspace=workspace)
    ops = {node.op_type for node in onnx.load(out / "model.onnx").graph.node}
    assert ops == {"FusedConv"}
