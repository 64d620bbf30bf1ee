"""A layer norm in parts becomes the operator, in FP32 and in half."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from optkit.craft.fusion import fuse
from optkit.craft.precision_cast.cast import to_half
from optkit.ground.graph import infer_shapes
from tests.fusion.conftest import Fuse

PARTS = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,3,8] x) => (float[N,3,8] y)
<float[8] g = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}, float[8] b = {1.0, 0.0, 1.0, 0.0, 2.0, 0.0,
 1.0, 3.0}, float e = {0.001}, float two = {2.0}, int64[1] last = {-1}> {
    t = Transpose<perm = [0, 1, 2]> (x)
    m = ReduceMean (x, last)
    c = Sub (x, m)
    s = Pow (c, two)
    v = ReduceMean (s, last)
    a = Add (v, e)
    r = Sqrt (a)
    n = Div (c, r)
    p = Mul (n, g)
    y = Add (p, b)
}"""
VARIANTS = {
    "as PaddlePaddle writes it": PARTS,
    "the difference taken twice": PARTS.replace("Div (c", "Div (k").replace(
        "s = Pow", "k = Sub (x, m) s = Pow"
    ),
    "squared by a product": PARTS.replace("Pow (c, two)", "Mul (c, c)"),
    "other operand first": PARTS.replace("Mul (n, g)", "Mul (g, n)").replace("(p, b)", "(b, p)"),
}


@pytest.mark.parametrize("case", VARIANTS)
def test_it_is_one_operator(fused: Fuse, case: str) -> None:
    after, log = fused(VARIANTS[case], N=2)
    assert [node.op_type for node in after.graph] == ["LayerNormalization"]
    assert log.counts["layer_norm"] == 1
    assert after.graph[0].attributes.get_float("epsilon") == pytest.approx(1e-3)


NOT = {
    "another axis": PARTS.replace("{-1}", "{1}"),
    "not centred": PARTS.replace("Div (c", "Div (x"),
    "a gain that is fed": PARTS.replace("float[N,3,8] x)", "float[N,3,8] x, float[8] h)").replace(
        "Mul (n, g)", "Mul (n, h)"
    ),
    "read before its bias": PARTS.replace("(float[N,3,8] y)", "(float[N,3,8] y, float[N,3,8] p)"),
}


@pytest.mark.parametrize("case", NOT)
def test_what_only_looks_like_it_stays(fused: Fuse, case: str) -> None:
    after, log = fused(NOT[case], N=2)
    assert "layer_norm" not in log.counts
    assert "LayerNormalization" not in [node.op_type for node in after.graph]


def test_no_optimizer_meets_it_across_a_cast() -> None:
    """ONNX Runtime 1.31 joins the parts of a norm behind a Cast into one whose types differ."""
    text = PARTS.replace("t = Transpose<perm = [0, 1, 2]> (x)", "x = MatMul (w, k)").replace(
        "g (float[N,3,8] x)", "g (float[N,3,8] w, float[8,8] k)"
    )
    model = infer_shapes(ir.from_onnx_text(text))
    fuse(model)
    to_half(model)
    rng = np.random.default_rng(1)
    feed = {"w": rng.standard_normal((2, 3, 8)), "k": rng.standard_normal((8, 8))}
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    (found,) = session.run(None, {name: x.astype(np.float32) for name, x in feed.items()})
    x = feed["w"] @ feed["k"]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)
    bias = np.array([1, 0, 1, 0, 2, 0, 1, 3])
    np.testing.assert_allclose(found, x * np.arange(1, 9) + bias, atol=0.05)
