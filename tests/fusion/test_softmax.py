"""A softmax in several operators becomes one, with the axes that a reduction dropped."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.fusion import fuse
from tests.fusion.conftest import Fuse, run

HEAD = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,3,5] x) => (float[N,3,5] y)
<int64[1] last = {-1}, int64[1] second = {2}, int64[1] first = {1}, int64[2] both = {1, 2},
 int64[3] wide = {-1, 3, 1}>"""
MAX = "m = ReduceMax(x, last) c = Sub(x, m) e = Exp(c) "
DROPPED = "ReduceSum<keepdims = 0>"
FORMS = {
    "exp over its sum": ("Softmax", "e = Exp(x) s = ReduceSum(e, last) y = Div(e, s)"),
    "less the maximum": ("Softmax", MAX + "s = ReduceSum(e, last) y = Div(e, s)"),
    "by a reciprocal": ("Softmax", MAX + "s = ReduceSum(e, last) r = Reciprocal(s) y = Mul(r, e)"),
    "axes from both ends": ("Softmax", MAX + "s = ReduceSum(e, second) y = Div(e, s)"),
    "exp taken twice": ("Softmax", "e = Exp(x) f = Exp(x) s = ReduceSum(f, last) y = Div(e, s)"),
    "axes given back": (
        "Softmax",
        f"e = Exp(x) t = {DROPPED}(e, last) s = Reshape(t, wide) y = Div(e, s)",
    ),
    "unsqueezed": (
        "Softmax",
        f"e = Exp(x) t = {DROPPED}(e, last) s = Unsqueeze(t, last) y = Div(e, s)",
    ),
    "exp of the rest": ("Softmax", "l = ReduceLogSumExp(x, last) d = Sub(x, l) y = Exp(d)"),
    "its logarithm": ("LogSoftmax", "l = ReduceLogSumExp(x, last) y = Sub(x, l)"),
}  # fmt: skip
OTHERS = {
    "over two axes": "e = Exp(x) s = ReduceSum(e, both) y = Div(e, s)",
    "the sum of something else": "e = Exp(x) n = Neg(x) f = Exp(n) s = ReduceSum(f, last) "
    "y = Div(e, s)",
    "an axis is dropped": "e = Exp(x) t = ReduceSum<keepdims = 0>(e, both) s = Reshape(t, wide1) "
    "y = Div(e, s)",
}  # fmt: skip


@pytest.mark.parametrize("case", FORMS)
def test_it_is_one_operator(fused: Fuse, case: str) -> None:
    op, body = FORMS[case]
    after, _ = fused(f"{HEAD} {{ {body} }}", N=2)
    assert [node.op_type for node in after.graph] == [op]


@pytest.mark.parametrize("case", OTHERS)
def test_what_only_looks_like_it_stays(fused: Fuse, case: str) -> None:
    head = HEAD.replace("wide = {-1, 3, 1}", "wide = {-1, 3, 1}, int64[3] wide1 = {-1, 1, 1}")
    after, log = fused(f"{head} {{ {OTHERS[case]} }}", N=2)
    assert "softmax" not in log.counts
    assert "Softmax" not in [node.op_type for node in after.graph]


def test_it_does_not_overflow() -> None:
    model = ir.from_onnx_text(f"{HEAD} {{ {FORMS['exp over its sum'][1]} }}")
    x = np.full((1, 3, 5), 200, np.float32)
    assert np.isnan(run(model, {"x": x})[0]).all()
    fuse(model)
    np.testing.assert_allclose(run(model, {"x": x})[0], 0.2)
