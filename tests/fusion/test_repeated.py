"""A branch that is computed twice is computed once; what only looks like it stays."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from optkit.craft.fusion import fuse
from tests.fusion.conftest import Fuse

HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[N,4] x) => (float[N,4] y)'
CONSTANTS = """<float[4,4] a = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0},
 float[4,4] b = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,1.0,2.0,3.0,4.0,5.0,6.0,7.0},
 float[4,4] c = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,1.0,2.0,3.0,4.0,5.0,6.0,8.0},
 float zero = {0.0}, float minus = {-0.0}, float[1] flat = {0.5}, float scalar = {0.5},
 int64[1] last = {-1}>"""


def graph_of(body: str) -> str:
    return f"{HEAD} {CONSTANTS} {{ {body} }}"


def ops(model: ir.Model) -> list[str]:
    return sorted(node.op_type for node in model.graph)


def test_a_branch_with_equal_weights_is_computed_once(fused: Fuse) -> None:
    branches = "p = MatMul(x, a) q = Tanh(p) s = MatMul(x, b) t = Tanh(s) y = Add(q, t)"
    after, log = fused(graph_of(branches), N=3)
    assert ops(after) == ["Add", "MatMul", "Tanh"]
    assert log.counts["merge_repeated"] == 2


BODIES = {
    "one number differs": "p = MatMul(x, a) s = MatMul(x, c) y = Add(p, s)",
    "another operator": "p = Sin(x) s = Cos(x) y = Add(p, s)",
    "another attribute": (
        "p = Softmax<axis = 0>(x) s = Softmax<axis = 1>(x) y = Add(p, s)"
    ),
    "an attribute of one only": "p = LeakyRelu<alpha = 0.2>(x) s = LeakyRelu(x) y = Add(p, s)",
    "operands exchanged": "t = Tanh(x) p = Sub(x, t) s = Sub(t, x) y = Mul(p, s)",
    "random numbers": "p = RandomNormalLike(x) s = RandomNormalLike(x) u = Sub(p, s) "
    "v = Mul(u, zero) y = Add(v, x)",
}  # fmt: skip


@pytest.mark.parametrize("case", BODIES)
def test_what_differs_stays(case: str) -> None:
    model = ir.from_onnx_text(graph_of(BODIES[case]))
    assert "merge_repeated" not in fuse(model).counts


def test_zeros_of_two_signs_are_two_constants(fused: Fuse) -> None:
    model = ir.from_onnx_text(graph_of("p = Div(x, zero) s = Div(x, minus) y = Add(p, s)"))
    assert "merge_repeated" not in fuse(model).counts


def test_two_outputs_with_one_value_keep_their_names(fused: Fuse) -> None:
    head = HEAD.replace("(float[N,4] y)", "(float[N,4] y, float[N,4] z)")
    after, log = fused(f"{head} {{ y = Tanh(x) z = Tanh(x) }}", N=2)
    assert ops(after) == ["Tanh", "Tanh"]
    assert any(entry.outcome == "declined" for entry in log.entries)


def test_of_an_output_and_a_value_the_output_keeps_its_name(fused: Fuse) -> None:
    body = "t = Tanh(x) s = MatMul(t, a) u = Tanh(s) y = Tanh(s) z = MatMul(u, a)"
    head = HEAD.replace("(float[N,4] y)", "(float[N,4] y, float[N,4] z)")
    after, _ = fused(f"{head} {CONSTANTS} {{ {body} }}", N=2)
    assert ops(after) == ["MatMul", "MatMul", "Tanh", "Tanh"]
