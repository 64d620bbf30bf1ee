"""The exporter's guard around softmax goes where no row can be all -inf, and stays elsewhere."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from optkit.craft.fusion import fuse
from optkit.ground import graph

HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[b, 2, 3, 4] q, float[b, 2, 4, 5] k'
CONSTANTS = """<float zero = {0.0}, float one = {1.0}, float low = {-3.4028234663852886e38},
    float hidden = {-1e4}, float inf = {-inf}, float[5] row = {0, -inf, 0, -inf, 0},
    int64 nought = {0}, int64 unit = {1},
    float[5] rows = {-inf, -inf, -inf, -inf, -inf}, float[5] nan = {0, nan, 0, 0, 0}>"""
TAIL = "p = Softmax<axis = -1>(t) n = IsNaN(p) y = Where(n, zero, p)"

SOUND = {
    "no mask": ("", "t = Identity(s)"),
    "boolean mask": (", bool[b, 1, 1, 5] m", "f = Where(m, zero, low) t = Add(s, f)"),
    "inverted mask": (
        ", bool[5] m",
        "i = Not(m) f = Cast<to = 1>(i) h = Mul(f, low) t = Add(h, s)",
    ),
    "integer mask": (
        ", int64[b, 5] m",
        (
            "f = Cast<to = 1>(m) i = Sub(one, f) h = Mul(i, hidden) "
            "a = Constant<value_ints = [1, 2]>() u = Unsqueeze(h, a) t = Add(s, u)"
        ),
    ),
    "constant with -inf": ("", "t = Add(s, row)"),
    "a choice that always falls the same way": (
        ", bool[5] m",
        "i = Cast<to = 7>(m) c = GreaterOrEqual(i, nought) f = Where(c, zero, inf) t = Add(s, f)",
    ),
    "both of two tests that always hold": (
        ", bool[5] m, bool[5] l",
        (
            "i = Cast<to = 7>(m) c = GreaterOrEqual(i, nought) j = Cast<to = 7>(l) "
            "d = GreaterOrEqual(unit, j) e = And(c, d) f = Where(e, zero, inf) t = Add(s, f)"
        ),
    ),
    "two masks of -1e4": (
        ", bool[5] m, bool[3, 5] l",
        "f = Where(m, zero, hidden) g = Where(l, zero, hidden) h = Add(f, g) t = Add(s, h)",
    ),
}
DECLINED = {
    "float input": (", float[5] m", "t = Add(s, m)", "the float input m may hold -inf"),
    "fill of -inf": (
        ", bool[5] m",
        "f = Where(m, zero, inf) t = Add(s, f)",
        "the constant inf holds an infinity",
    ),
    "one of two tests that may not hold": (
        ", bool[5] m",
        (
            "i = Cast<to = 7>(m) c = GreaterOrEqual(i, nought) d = GreaterOrEqual(i, unit) "
            "e = And(c, d) f = Where(e, zero, inf) t = Add(s, f)"
        ),
        "the constant inf holds an infinity",
    ),
    "all of a row": ("", "t = Add(s, rows)", "the constant rows hides a row, or is no mask"),
    "NaN": ("", "t = Add(s, nan)", "the constant nan hides a row, or is no mask"),
    "two masks of the lowest number": (
        ", bool[5] m, bool[3, 5] l",
        "f = Where(m, zero, low) g = Where(l, zero, low) h = Add(f, g) t = Add(s, h)",
        "Add h may overflow to an infinity",
    ),
    "an integer that is no truth": (
        ", int64[5] m",
        "f = Cast<to = 1>(m) h = Mul(f, low) t = Add(s, h)",
        "Mul h may overflow to an infinity",
    ),
    "division by what may be zero": (
        ", bool[5] m",
        "f = Cast<to = 1>(m) h = Div(hidden, f) t = Add(s, h)",
        "Div h may divide by zero",
    ),
    "logarithm": (
        ", bool[5] m",
        "f = Cast<to = 1>(m) h = Log(f) t = Add(s, h)",
        "Log h may give -inf",
    ),
}


def build(inputs: str, body: str, tail: str = TAIL) -> ir.Model:
    text = (
        f"{HEAD}{inputs}) => (float[b, 2, 3, 5] y) {CONSTANTS} {{ s = MatMul(q, k) {body} {tail} }}"
    )
    model = ir.from_onnx_text(text)
    for node in model.graph:
        node.name = node.outputs[0].name
    return model


@pytest.mark.parametrize("case", SOUND)
def test_a_guard_that_never_acts_goes(fused, case: str) -> None:
    model, log = fused(build(*SOUND[case]), b=2)
    assert log.counts["drop_guard"] == 1
    assert {"IsNaN"}.isdisjoint(node.op_type for node in model.graph)
    assert model.graph[-1].op_type == "Softmax" and model.graph[-1].outputs[0].name == "y"


@pytest.mark.parametrize("case", DECLINED)
def test_a_guard_that_may_act_stays(case: str) -> None:
    inputs, body, reason = DECLINED[case]
    model = graph.upgrade(build(inputs, body))
    log = fuse(model)
    assert model.graph[-1].op_type == "Where"
    assert [e.reason for e in log.entries if e.rule == "drop_guard"] == [reason]


def test_the_guard_is_kept_where_it_acts() -> None:
    """An input mask of -inf: without the guard the result would be NaN."""
    model = graph.upgrade(build(", float[5] m", "t = Add(s, m)"))
    fuse(model)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    feed = {"q": np.ones((1, 2, 3, 4)), "k": np.ones((1, 2, 4, 5)), "m": np.full(5, -np.inf)}
    found = session.run(None, {name: a.astype(np.float32) for name, a in feed.items()})[0]
    assert not np.isnan(found).any()


def test_rows_whose_every_score_is_filled_stay_finite(fused) -> None:
    """The exporter's fill is finite, so the softmax of a row of it is its mean."""
    model, _ = fused(build(*SOUND["boolean mask"]), b=2)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    feed = {
        "q": np.ones((1, 2, 3, 4), np.float32),
        "k": np.ones((1, 2, 4, 5), np.float32),
        "m": np.zeros((1, 1, 1, 5), bool),
    }
    np.testing.assert_allclose(session.run(None, feed)[0], 0.2)


OTHER = {
    "another test": "p = Softmax(t) o = Exp(t) n = IsNaN(o) y = Where(n, zero, p)",
    "turned around": "p = Softmax(t) n = IsNaN(p) y = Where(n, p, zero)",
}


@pytest.mark.parametrize("case", OTHER)
def test_other_choices_are_not_guards(fused, case: str) -> None:
    model, log = fused(build("", "t = Identity(s)", OTHER[case]), b=2)
    assert "drop_guard" not in log.counts and model.graph[-1].op_type == "Where"


def test_a_softmax_along_another_axis_is_declined() -> None:
    model = graph.upgrade(build("", "t = Identity(s)", TAIL.replace("-1", "1")))
    reasons = [e.reason for e in fuse(model).entries if e.rule == "drop_guard"]
    assert reasons == ["the softmax is not known to run along the last axis"]


def test_the_softmax_may_have_other_readers(fused) -> None:
    tail = "p = Softmax<axis = -1>(t) n = IsNaN(p) w = Where(n, zero, p) y = Mul(w, p)"
    model, log = fused(build("", "t = Identity(s)", tail), b=2)
    assert log.counts["drop_guard"] == 1
    assert [node.op_type for node in model.graph] == ["MatMul", "Softmax", "Mul"]
