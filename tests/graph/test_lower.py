"""Graphs in an older opset compute the same, and what an older opset does not have is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from optkit.facts.errors import InputRefused
from optkit.ground import graph

HEAD = '<ir_version: 10, opset_import: ["" : {opset}]>\n'
GRAPHS = {
    "gelu": "g (float[n,8] x) => (float[n,8] y) { [a] y = Gelu (x) }",
    "tanh gelu": 'g (float[n,8] x) => (float[n,8] y) { [a] y = Gelu <approximate="tanh"> (x) }',
    "pairs": """g (float[n,8] x) => (float[n,8] y) <float s = {0.1}, int8 z = {3}> {
        [q] c = QuantizeLinear <block_size=0, output_dtype=0, saturate=1> (x, s, z)
        [d] y = DequantizeLinear <block_size=0> (c, s, z) }""",
    "norm": """g (float[n,8] x, float[8] w) => (float[n,8] y) {
        [l] a = LayerNormalization <axis=-1> (x, w) [r] b = ReduceMax <keepdims=0> (a)
        [c] d = Cast <to=1> (b) [s] y = Add (a, d) }""",
    "branch": """g (float[n,8] x, bool c) => (float[n,8] y) {
        [i] y = If (c) <then_branch = t () => (float[n,8] u) { [g] u = Gelu (x) },
                        else_branch = e () => (float[n,8] v) { [r] v = Relu (x) }> }""",
}  # fmt: skip
GRIDS = 'g (float[1,2,5,6] x, float[1,3,4,2] p) => (float[1,2,3,4] y) {{ [a] y = GridSample <mode="{}"> (x, p) }}'  # fmt: skip # noqa: E501
GRAPHS |= {f"{mode} grid": GRIDS.format(mode) for mode in ("linear", "cubic", "nearest")}

NEWER = {
    "it is RMSNormalization": (23, 23, """g (float[n,8] x, float[8] w) => (float[n,8] y) {
        [a] y = RMSNormalization (x, w) }"""),
    "it is GroupNormalization of opset 21": (21, 21, """
        g (float[n,8,4] x, float[8] w) => (float[n,8,4] y) {
        [a] y = GroupNormalization <num_groups=2> (x, w, w) }"""),
    "it has the attribute block_size": (21, 21, """
        g (int8[32,8] x, float[2,8] s) => (float[32,8] y) {
        [a] y = DequantizeLinear <axis=0, block_size=16> (x, s) }"""),
    "it reads or writes INT4": (21, 21, """g (int4[32,8] x, float s) => (float[32,8] y) {
        [a] y = DequantizeLinear (x, s) }"""),
}  # fmt: skip


def model_of(text: str, opset: int = 21) -> ir.Model:
    model = ir.from_onnx_text(HEAD.format(opset=opset) + text)
    return graph.infer_shapes(model)


def run(model: ir.Model, path: Path) -> np.ndarray:
    graph.save(model, path)
    graph.check(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feed = {}
    for one in session.get_inputs():
        shape = [size if isinstance(size, int) else 3 for size in one.shape]
        numbers = rng.uniform(-1, 1, shape) * (1 if one.name == "p" else 3)
        feed[one.name] = np.array(True) if one.type == "tensor(bool)" else numbers.astype("f4")
    found: np.ndarray = session.run(None, feed)[0]
    return found


@pytest.mark.parametrize("opset", [19, 20])
@pytest.mark.parametrize("name", GRAPHS)
def test_an_older_opset_computes_the_same(name: str, opset: int, tmp_path: Path) -> None:
    model = model_of(GRAPHS[name])
    expected = run(model, tmp_path / "given.onnx")
    graph.lower(model, opset)
    np.testing.assert_allclose(run(model, tmp_path / "old.onnx"), expected, rtol=2e-5, atol=2e-6)
    written = onnx.load(tmp_path / "old.onnx")
    assert (written.ir_version, written.opset_import[0].version) == (9, opset)


@pytest.mark.parametrize("why", NEWER)
def test_what_an_older_opset_does_not_have_is_named(why: str) -> None:
    opset, needed, text = NEWER[why]
    model = model_of(text, opset)
    before = ir.to_proto(model).SerializeToString()
    with pytest.raises(InputRefused, match="which opset 20 does not have") as caught:
        graph.lower(model, 20)
    assert caught.value.message.startswith(why)
    assert caught.value.where is not None and "node 'a'" in caught.value.where
    assert f"model.opset to {needed} or newer" in str(caught.value.hint)
    assert ir.to_proto(model).SerializeToString() == before


def test_a_newer_limit_changes_nothing() -> None:
    model = model_of(GRAPHS["gelu"])
    before = ir.to_proto(model).SerializeToString()
    graph.lower(model, 21)
    graph.lower(model, 25)
    assert ir.to_proto(model).SerializeToString() == before
