"""Gelu, swish and what follows a Gemm become one operator; a bias behind a product of floats goes
along, one behind a product of codes does not."""

from __future__ import annotations

from math import erf

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from tests.codes import weights

RNG = np.random.default_rng(41)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


CONSTANTS = {
    "root": number(2**0.5),
    "inverse": number(0.5**0.5),
    "half": number(0.5),
    "one": number(1),
    "three": number(3),
    "small": number(0.044715),
    "slope": number((2 / np.pi) ** 0.5),
    "alpha": number(1.702),
}
CURVE = {
    "div": "i = Div(x, root) e = Erf(i) a = Add(e, one)",
    "mul": "i = Mul(inverse, x) e = Erf(i) a = Add(one, e)",
    "tanh": (
        "c = Pow(x, three) s = Mul(small, c) p = Add(x, s) i = Mul(p, slope) e = Tanh(i) "
        "a = Add(e, one)"
    ),
}
PRODUCT = {
    "half of the gate": "h = Mul(half, a) y = Mul(x, h)",
    "half of x": "h = Mul(x, half) y = Mul(h, a)",
    "half at the end": "h = Mul(x, a) y = Mul(h, half)",
}


def gelu(x: np.ndarray, curve: str) -> np.ndarray:
    x = x.astype(np.float64)
    if curve == "tanh":
        return x * 0.5 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return x * 0.5 * (1 + np.vectorize(erf)(x / 2**0.5))


def run(model: ir.Model, feed: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found: np.ndarray = session.run(None, feed)[0]
    return found


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("curve", CURVE)
@pytest.mark.parametrize("product", PRODUCT)
def test_gelu(as_ort, build, curve: str, product: str) -> None:
    body = f"{CURVE[curve]} {PRODUCT[product]}"
    model = build("float[b, s, 12] x", "float[b, s, 12] y", body, **CONSTANTS)
    x = 2 * random(2, 3, 12)
    after, log = as_ort(model, {"x": x})
    assert ops(after) == ["Gelu"] and log.counts["activation"] == 1
    np.testing.assert_allclose(run(after, {"x": x}), gelu(x, curve), rtol=1e-5, atol=1e-6)


SWISH = {
    "plain": ("g = Sigmoid(x) y = Mul(x, g)", 1.0),
    "steep": ("i = Mul(x, alpha) g = Sigmoid(i) y = Mul(g, x)", 1.702),
}


@pytest.mark.parametrize("case", SWISH)
def test_swish(as_ort, build, case: str) -> None:
    body, alpha = SWISH[case]
    model = build("float[b, 12] x", "float[b, 12] y", body, **CONSTANTS)
    x = 2 * random(3, 12)
    after, _ = as_ort(model, {"x": x})
    assert ops(after) == ["QuickGelu"]
    expected = x / (1 + np.exp(-alpha * x.astype(np.float64)))
    np.testing.assert_allclose(run(after, {"x": x}), expected, rtol=1e-5, atol=1e-6)


NOT = {
    "another slope": "i = Mul(x, half) e = Erf(i) a = Add(e, one) h = Mul(half, a) y = Mul(x, h)",
    "another source": (
        "n = Neg(x) i = Div(n, root) e = Erf(i) a = Add(e, one) h = Mul(half, a) y = Mul(x, h)"
    ),
    "no half": "i = Div(x, root) e = Erf(i) a = Add(e, one) y = Mul(x, a)",
    "twice the swish": "g = Sigmoid(x) h = Mul(x, root) y = Mul(h, g)",
    "gate of another": "n = Neg(x) g = Sigmoid(n) y = Mul(x, g)",
    "another cube": (
        "c = Pow(x, three) s = Mul(half, c) p = Add(x, s) i = Mul(p, slope) e = Tanh(i) "
        "a = Add(e, one) h = Mul(half, a) y = Mul(x, h)"
    ),
}


@pytest.mark.parametrize("case", NOT)
def test_what_only_looks_like_an_activation_stays(as_ort, build, case: str) -> None:
    model = build("float[b, 12] x", "float[b, 12] y", NOT[case], **CONSTANTS)
    _, log = as_ort(model, {"x": random(2, 12)})
    assert log.counts == {}


def test_a_gate_that_others_read_is_kept_for_them(as_ort, build) -> None:
    body = "g = Sigmoid(x) y = Mul(x, g) z = Neg(g)"
    model = build("float[b, 12] x", "float[b, 12] y, float[b, 12] z", body)
    after, _ = as_ort(model, {"x": random(2, 12)})
    assert sorted(ops(after)) == ["Neg", "QuickGelu", "Sigmoid"]


def test_another_precision_is_declined(as_ort, build) -> None:
    model = build("double[b, 12] x", "double[b, 12] y", "g = Sigmoid(x) y = Mul(x, g)")
    _, log = as_ort(model, {"x": random(2, 12).astype(np.float64)})
    assert [entry.reason for entry in log.entries] == ["it is not float32"]


BIASED = f"m = MatMul(u, w) x = Add(m, b) {{curve}} {PRODUCT['half of the gate']}"


@pytest.mark.parametrize(("curve", "op"), [("div", "BiasGelu"), ("tanh", "FastGelu")])
def test_the_bias_of_a_product_goes_along(as_ort, build, curve: str, op: str) -> None:
    c = CONSTANTS | {"w": random(6, 12), "b": random(12)}
    body = BIASED.format(curve=CURVE[curve])
    model = build("float[b, s, 6] u", "float[b, s, 12] y", body, **c)
    u = random(2, 3, 6)
    after, _ = as_ort(model, {"u": u}, rtol=1e-4)
    assert ops(after) == ["MatMul", op]
    expected = gelu(u @ c["w"] + c["b"], curve)
    np.testing.assert_allclose(run(after, {"u": u}), expected, rtol=1e-4, atol=1e-5)


def test_a_sum_that_others_read_keeps_its_bias(as_ort, build) -> None:
    c = CONSTANTS | {"w": random(6, 12), "b": random(12)}
    body = BIASED.format(curve=CURVE["div"]) + " z = Neg(x)"
    model = build("float[b, 6] u", "float[b, 12] y, float[b, 12] z", body, **c)
    after, log = as_ort(model, {"u": random(2, 6)}, rtol=1e-4)
    assert sorted(ops(after)) == ["Add", "Gelu", "MatMul", "Neg"]
    reasons = [entry.reason for entry in log.entries if entry.outcome == "declined"]
    assert reasons == ["its input is also used elsewhere"]


def test_the_bias_of_a_product_of_codes_stays_its_own(as_ort, build) -> None:
    c = CONSTANTS | {
        "s": number(0.02),
        "z": np.array(117, np.uint8),
        "wq": weights(RNG, (6, 12)),
        "sw": number(0.01),
        "zw": np.array(0, np.int8),
        "b": random(12),
    }
    codes = "q = QuantizeLinear(v, s, z) u = DequantizeLinear(q, s, z) "
    codes += "w = DequantizeLinear(wq, sw, zw) "
    body = codes + BIASED.format(curve=CURVE["div"])
    model = build("float[b, 6] v", "float[b, 12] y", body, **c)
    after, _ = as_ort(model, {"v": random(2, 6)}, rtol=1e-4)
    assert ops(after) == ["QuantizeLinear", "MatMulIntegerToFloat", "Gelu"]
    assert len(after.graph[1].inputs) == 7


@pytest.mark.parametrize("op", ["Tanh", "Sigmoid", "Relu"])
def test_a_gemm_takes_its_activation_along(as_ort, build, op: str) -> None:
    c = {"w": random(12, 6), "b": random(12)}
    body = f"g = Gemm<transB = 1, alpha = 0.5>(x, w, b) y = {op}(g)"
    model = build("float[b, 6] x", "float[b, 12] y", body, **c)
    name = model.graph[0].name
    x = random(2, 6)
    after, _ = as_ort(model, {"x": x})
    assert [(node.op_type, node.name) for node in after.graph] == [("FusedGemm", name)]
    y = 0.5 * x @ c["w"].T + c["b"]
    expected = {"Tanh": np.tanh(y), "Sigmoid": 1 / (1 + np.exp(-y)), "Relu": np.maximum(y, 0)}[op]
    np.testing.assert_allclose(run(after, {"x": x}), expected, rtol=1e-5, atol=1e-5)


def test_a_gemm_of_another_precision_stays(as_ort, build) -> None:
    body = "g = Gemm(x, w) y = Tanh(g)"
    model = build("double[b, 6] x", "double[b, 12] y", body, w=random(6, 12).astype(np.float64))
    _, log = as_ort(model, {"x": random(2, 6).astype(np.float64)})
    assert log.counts == {}


def test_a_gemm_whose_result_is_read_elsewhere_stays(as_ort, build) -> None:
    body = "g = Gemm(x, w) y = Tanh(g) z = Neg(g)"
    outputs = "float[b, 12] y, float[b, 12] z"
    model = build("float[b, 6] x", outputs, body, w=random(6, 12))
    _, log = as_ort(model, {"x": random(2, 6)})
    assert log.counts == {}
