"""RMSNorm becomes one operator; a residual sum stays apart from its LayerNormalization."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

RNG = np.random.default_rng(5)
SQUARES = {"pow": "s = Pow(x, two)", "mul": "s = Mul(x, x)"}
ROOTS = {
    "reciprocal": "r = Sqrt(e) i = Reciprocal(r) n = Mul(x, i)",
    "one over": "r = Sqrt(e) i = Div(one, r) n = Mul(i, x)",
    "div": "r = Sqrt(e) n = Div(x, r)",
}
GAINS = {"left": "y = Mul(g, n)", "right": "y = Mul(n, g)"}


def constants(size: int = 12) -> dict[str, np.ndarray]:
    return {
        "two": np.array(2, np.float32),
        "one": np.array(1, np.float32),
        "eps": np.array(1e-5, np.float32),
        "last": np.array([-1]),
        "first": np.array([1]),
        "g": RNG.standard_normal(size).astype(np.float32),
    }


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("gain", GAINS)
def test_rms_norm(as_ort, build, square: str, root: str, gain: str) -> None:
    body = (
        f"{SQUARES[square]} m = ReduceMean<keepdims = 1>(s, last) e = Add(m, eps) "
        f"{ROOTS[root]} {GAINS[gain]}"
    )
    model = build("float[b, s, 12] x", "float[b, s, 12] y", body, **constants())
    x = random(2, 3, 12)
    after, log = as_ort(model, {"x": x})
    assert [node.op_type for node in after.graph] == ["RMSNormalization"]
    assert log.counts["rms_norm"] == 1
    g = np.asarray(after.graph[0].inputs[1].const_value.numpy(), np.float64)
    expected = g * x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5)
    session = onnxruntime.InferenceSession(ir.to_proto(after).SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-6)


MEAN = "s = Mul(x, x) m = ReduceMean(s, last) e = Add(m, eps) r = Sqrt(e) "
NOT = {
    "another axis": MEAN.replace("last", "first") + "n = Div(x, r)",
    "another source": MEAN + "v = Neg(x) n = Div(v, r)",
    "upside down": MEAN + "n = Div(r, x)",
    "no squares": MEAN.replace("Mul(x, x)", "Pow(x, eps)") + "n = Div(x, r)",
}


@pytest.mark.parametrize("case", NOT)
def test_what_only_looks_like_rms_norm_stays(as_ort, build, case: str) -> None:
    body = f"{NOT[case]} y = Mul(n, g)"
    model = build("float[b, 3, 12] x", "float[b, 3, 12] y", body, **constants())
    after, log = as_ort(model, {"x": np.abs(random(2, 3, 12)) + 0.1}, rtol=1e-4)
    assert log.counts == {} and after.graph[-1].op_type == "Mul"


def test_a_gain_that_is_computed_stays_beside_the_norm(as_ort, build) -> None:
    body = MEAN + "n = Div(x, r) y = Mul(n, k)"
    model = build("float[b, 12] x, float[12] k", "float[b, 12] y", body, **constants())
    after, log = as_ort(model, {"x": random(2, 12), "k": random(12)})
    assert [node.op_type for node in after.graph] == ["RMSNormalization", "Mul"]
    assert log.counts["bare_norm"] == 1


def test_a_layer_norm_without_gain_has_one_of_ones(as_ort, build) -> None:
    centred = "t = ReduceMean(x, last) c = Sub(x, t) "
    body = centred + MEAN.replace("(x, x)", "(c, c)") + "y = Div(c, r)"
    model = build("float[b, 12] x", "float[b, 12] y", body, **constants())
    after, _ = as_ort(model, {"x": random(2, 12) + 3}, rtol=1e-4)
    assert [node.op_type for node in after.graph] == ["LayerNormalization"]


def test_the_statistics_of_a_norm_may_be_read_elsewhere(as_ort, build) -> None:
    body = MEAN + "n = Div(x, r) y = Mul(n, g) z = Neg(r)"
    model = build("float[b, 12] x", "float[b, 12] y, float[b, 1] z", body, **constants())
    after, _ = as_ort(model, {"x": random(2, 12)})
    assert {"RMSNormalization", "Sqrt"} <= {node.op_type for node in after.graph}


@pytest.mark.parametrize("behind", [False, True])
def test_a_residual_sum_is_not_fused_with_its_norm(as_ort, build, tmp_path, behind: bool) -> None:
    """ONNX Runtime's own fusion would take it; judged by the graph that it runs."""
    c = {"g": random(8), "b": random(8), "c": random(8)}
    sums = "p = Add(z, c) t = Add(x, p)" if behind else "t = Add(x, z)"
    body = f"{sums} y = LayerNormalization<axis = -1>(t, g, b)"
    model = build("float[n, 4, 8] x, float[n, 4, 8] z", "float[n, 4, 8] y", body, **c)
    feed = {"x": random(2, 4, 8), "z": random(2, 4, 8)}
    after, log = as_ort(model, feed)
    assert log.counts == {"sum_apart": 1}
    assert "SkipLayerNormalization" in _optimized(model, tmp_path)
    assert "SkipLayerNormalization" not in _optimized(after, tmp_path)


def test_a_sum_that_others_read_or_of_a_constant_stays_an_add(as_ort, build) -> None:
    c = {"g": random(8), "b": random(8), "rows": random(1, 4, 8)}
    body = (
        "t = Add(x, z) y = LayerNormalization(t, g, b) w = Neg(t) "
        "u = Add(x, rows) v = LayerNormalization(u, g, b)"
    )
    outputs = "float[n, 4, 8] y, float[n, 4, 8] w, float[n, 4, 8] v"
    model = build("float[n, 4, 8] x, float[n, 4, 8] z", outputs, body, **c)
    _, log = as_ort(model, {"x": random(2, 4, 8), "z": random(2, 4, 8)})
    assert log.counts == {}


SUMS = {
    "branch first": "z = Add(a, r)",
    "residual first": "z = Add(r, a)",
    "bias first": "z = Add(r, a)",
}


@pytest.mark.parametrize("case", SUMS)
@pytest.mark.parametrize("behind", ["LayerNormalization", "Neg"])
def test_a_residual_sum_takes_the_bias_of_its_branch(as_ort, build, case: str, behind) -> None:
    c = {"w": random(6, 8), "c": random(8), "g": random(8), "b": random(8)}
    bias = "a = Add(c, p)" if case == "bias first" else "a = Add(p, c)"
    tail = "y = Neg(z)" if behind == "Neg" else "y = LayerNormalization(z, g, b)"
    body = f"p = MatMul(x, w) {bias} {SUMS[case]} {tail}"
    model = build("float[n, 4, 6] x, float[n, 4, 8] r", "float[n, 4, 8] y", body, **c)
    after, log = as_ort(model, {"x": random(2, 4, 6), "r": random(2, 4, 8)})
    assert [node.op_type for node in after.graph] == ["MatMul", "Sum", behind]
    assert len(after.graph[1].inputs) == 3 and log.counts["sum_bias"] == 1


def test_a_branch_that_others_read_keeps_its_bias(as_ort, build) -> None:
    c = {"w": random(6, 8), "c": random(8)}
    body = "p = MatMul(x, w) a = Add(p, c) z = Add(a, r) y = Neg(z) v = Neg(a)"
    outputs = "float[n, 8] y, float[n, 8] v"
    model = build("float[n, 6] x, float[n, 8] r", outputs, body, **c)
    _, log = as_ort(model, {"x": random(2, 6), "r": random(2, 8)})
    assert [e.reason for e in log.entries] == ["the branch is also used elsewhere"]


def test_two_branches_give_one_of_their_biases(as_ort, build) -> None:
    c = {"w": random(6, 8), "v": random(6, 8), "c": random(8), "d": random(8)}
    body = "p = MatMul(x, w) a = Add(p, c) q = MatMul(x, v) e = Add(q, d) z = Add(a, e) y = Neg(z)"
    model = build("float[n, 6] x", "float[n, 8] y", body, **c)
    after, _ = as_ort(model, {"x": random(2, 6)})
    assert sorted(n.op_type for n in after.graph) == ["Add", "MatMul", "MatMul", "Neg", "Sum"]


def _optimized(model: ir.Model, folder) -> set[str]:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return {node.op_type for node in ir.load(folder / "optimized.onnx").graph}
