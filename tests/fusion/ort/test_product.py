"""Q/DQ around a MatMul or Gemm become one product of codes with its bias, or stay with a reason."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optkit.ground import graph
from tests import codes

RNG = np.random.default_rng(11)
QDQ = "q = QuantizeLinear(x, sa, za)  a = DequantizeLinear(q, sa, za) "
W = "w = DequantizeLinear<axis = 1>(wq, sw, zw) "


def parameters(k: int, n: int, channels: bool = True) -> dict[str, np.ndarray]:
    """Constants of a product of [.., k] codes with [k, n] codes."""
    rng = np.random.default_rng(k * 1000 + n)
    size = (n,) if channels else ()
    return {
        "sa": np.array(0.02, np.float32),
        "za": np.array(117, np.uint8),
        "wq": codes.weights(rng, (k, n)),
        "sw": rng.uniform(0.001, 0.01, size).astype(np.float32),
        "zw": np.zeros(size, np.int8),
        "b": rng.standard_normal(n).astype(np.float32),
    }


def integers(x: np.ndarray, c: dict[str, np.ndarray]) -> np.ndarray:
    """The product as the module's docstring states it, in int64 and float64."""
    q = np.clip(np.rint(x / c["sa"]) + int(c["za"]), 0, 255).astype(np.int64) - int(c["za"])
    sums = q @ (c["wq"].astype(np.int64) - c["zw"].astype(np.int64))
    return sums * (c["sa"].astype(np.float64) * c["sw"].astype(np.float64))


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.integers(1, 5),
    k=st.integers(1, 40),
    n=st.integers(1, 40),
    channels=st.booleans(),
    bias=st.sampled_from(["none", "left", "right"]),
)
def test_a_product_with_its_bias(as_ort, build, rows, k, n, channels, bias) -> None:
    c = parameters(k, n, channels)
    tail = {"none": "y = Identity(p)", "left": "y = Add(b, p)", "right": "y = Add(p, b)"}[bias]
    model = build(
        f"float[s, 2, {k}] x", f"float[s, 2, {n}] y", f"{QDQ} {W} p = MatMul(a, w) {tail}", **c
    )
    feed = {"x": random(rows, 2, k)}
    after, log = as_ort(model, feed, rtol=1e-4, atol=1e-4)
    assert log.counts["multiply_codes"] == 1
    assert [op for op in ops(after) if op != "Identity"] == [
        "QuantizeLinear",
        "MatMulIntegerToFloat",
    ]
    product = after.graph[1]
    assert product.domain == "com.microsoft"
    assert product.inputs[0] is after.graph[0].outputs[0]  # codes, not floats
    assert (len(product.inputs) == 7) == (bias != "none")
    expected = integers(feed["x"], c) + (c["b"] if bias != "none" else 0)
    session = onnxruntime.InferenceSession(
        ir.to_proto(after).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-5, atol=1e-5)


def test_the_product_keeps_the_name_of_its_node(as_ort, build) -> None:
    body = f"{QDQ} {W} p = MatMul(a, w) y = Add(p, b)"
    model = build("float[s, 8] x", "float[s, 5] y", body, **parameters(8, 5))
    name = next(node.name for node in model.graph if node.op_type == "MatMul")
    after, _ = as_ort(model, {"x": random(3, 8)}, 1e-4, 1e-4)
    assert {node.op_type: node.name for node in after.graph}["MatMulIntegerToFloat"] == name


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", ["", "b", "b32"])
def test_a_gemm(as_ort, build, transposed: bool, bias: str) -> None:
    c = parameters(12, 7)
    axis = 1
    if transposed:
        c["wq"], axis = c["wq"].T.copy(), 0
    extra = ""
    if bias == "b32":
        c["bq"] = RNG.integers(-1000, 1000, 7).astype(np.int32)
        c["sb"] = (c["sa"] * c["sw"]).astype(np.float32)
        extra = "b32 = DequantizeLinear<axis = 0>(bq, sb)"
    operands = ", ".join(filter(None, ["a", "w", bias]))
    body = (
        f"{QDQ} w = DequantizeLinear<axis = {axis}>(wq, sw, zw) {extra} "
        f"y = Gemm<transB = {int(transposed)}>({operands})"
    )
    model = build("float[s, 12] x", "float[s, 7] y", body, **c)
    after, log = as_ort(model, {"x": random(4, 12)}, 1e-4, 1e-4)
    assert ops(after) == ["QuantizeLinear", "MatMulIntegerToFloat"]
    assert log.counts["multiply_codes"] == 1


def test_products_that_share_an_activation_read_one_quantization(as_ort, build) -> None:
    c = parameters(8, 5) | {"wq2": codes.weights(RNG, (8, 5))}
    body = (
        f"{QDQ} {W} v = DequantizeLinear<axis = 1>(wq2, sw, zw) y = MatMul(a, w) z = MatMul(a, v)"
    )
    model = build("float[s, 8] x", "float[s, 5] y, float[s, 5] z", body, **c)
    after, _ = as_ort(model, {"x": random(3, 8)}, 1e-4, 1e-4)
    assert ops(after) == ["QuantizeLinear", "MatMulIntegerToFloat", "MatMulIntegerToFloat"]


def test_two_term_activations_share_one_weight(as_ort, build) -> None:
    """q(x), and q of what it left: y = (dq(q₁(x)) + dq(q₂(x − dq(q₁(x))))) W + b."""
    c = parameters(16, 6) | {"sr": np.array(0.0001, np.float32), "zr": np.array(128, np.uint8)}
    body = (
        f"{QDQ} {W} rest = Sub(x, a) r = QuantizeLinear(rest, sr, zr) "
        "d = DequantizeLinear(r, sr, zr) p = MatMul(a, w) o = MatMul(d, w) "
        "pb = Add(p, b) y = Add(pb, o)"
    )
    model = build("float[s, 16] x", "float[s, 6] y", body, **c)
    after, log = as_ort(model, {"x": random(4, 16)}, 1e-4, 1e-4)
    products = [node for node in after.graph if node.op_type == "MatMulIntegerToFloat"]
    assert len(products) == 2 and products[0].inputs[1] is products[1].inputs[1]
    others = ["Add", "DequantizeLinear", "QuantizeLinear", "QuantizeLinear", "Sub"]
    assert sorted(op for op in ops(after) if op != "MatMulIntegerToFloat") == others
    stored = [v for v in after.graph.initializers.values() if v.dtype == ir.DataType.INT8]
    assert len(stored) == 1 and log.counts["multiply_codes"] == 2


def test_a_float_reader_of_the_activation_keeps_its_dequantized_value(as_ort, build) -> None:
    body = f"{QDQ} {W} y = MatMul(a, w) z = Neg(a)"
    model = build("float[s, 8] x", "float[s, 5] y, float[s, 8] z", body, **parameters(8, 5))
    after, _ = as_ort(model, {"x": random(3, 8)}, 1e-4, 1e-4)
    assert sorted(ops(after)) == sorted(
        ["QuantizeLinear", "DequantizeLinear", "MatMulIntegerToFloat", "Neg"]
    )


def test_an_add_that_two_read_or_that_is_no_bias_stays(as_ort, build) -> None:
    c = parameters(8, 5) | {"rows": random(3, 5)}
    body = f"{QDQ} {W} p = MatMul(a, w) y = Add(p, rows) "
    body += "o = MatMul(a, w) u = Add(o, b) z = Mul(u, o)"
    model = build("float[3, 8] x", "float[3, 5] y, float[3, 5] z", body, **c)
    after, _ = as_ort(model, {"x": random(3, 8)}, 1e-4, 1e-4)
    assert ops(after).count("Add") == 2 and ops(after).count("MatMulIntegerToFloat") == 2


S8 = "float[s, 8] x"
DECLINED = {
    "its activation is not uint8": {
        "za": np.array(0, np.int8),
        "wq": RNG.integers(-9, 9, (8, 5)).astype(np.int8),
    },
    "its weight is 3-d int8": {"wq": RNG.integers(-9, 9, (1, 8, 5)).astype(np.int8), "axis": 2},
    "its weight's scales do not lie along the output channels": {
        "sw": np.full(8, 0.01, np.float32),
        "zw": np.zeros(8, np.int8),
        "axis": 0,
    },
}


@pytest.mark.parametrize("reason", DECLINED)
def test_what_no_integer_kernel_computes_is_declined(as_ort, build, reason: str) -> None:
    changed = dict(DECLINED[reason])
    axis = changed.pop("axis", 1)
    c = parameters(8, 5) | changed
    dims = "1, s, 5" if c["wq"].ndim == 3 else "s, 5"
    body = f"{QDQ} w = DequantizeLinear<axis = {axis}>(wq, sw, zw) y = MatMul(a, w)"
    model = build(S8, f"float[{dims}] y", body, **c)
    # ONNX Runtime's own fusion makes a product of some of these, which fails when it runs
    after, log = as_ort(model, {"x": random(3, 8)}, levels=(False,))
    assert "MatMulIntegerToFloat" not in ops(after)
    assert [entry.reason for entry in log.entries if entry.outcome == "declined"] == [reason]


def test_a_quantized_result_is_left_to_onnx_runtime(as_ort, build) -> None:
    body = (
        f"{QDQ} {W} p = MatMul(a, w) r = QuantizeLinear(p, sa, za) y = DequantizeLinear(r, sa, za)"
    )
    model = build(S8, "float[s, 5] y", body, **parameters(8, 5))
    # a code may round the other way where the sums' order differs
    _, log = as_ort(model, {"x": random(3, 8)}, atol=0.021)
    reasons = [entry.reason for entry in log.entries if entry.outcome == "declined"]
    assert reasons == ["its result is quantized: ONNX Runtime writes the codes at once"]


@pytest.mark.parametrize("how", ["slice", "split"])
def test_columns_that_are_read_apart_become_products(as_ort, build, how: str) -> None:
    c = parameters(8, 9) | {
        "last": np.array([2]),
        "i0": np.array([0]),
        "i4": np.array([4]),
        "i9": np.array([9]),
        "sizes": np.array([4, 5]),
    }
    cut = {
        "slice": "u = Slice(p, i0, i4, last) v = Slice(p, i4, i9, last)",
        "split": "u, v = Split<axis = -1>(p, sizes)",
    }[how]
    body = f"{QDQ} {W} m = MatMul(a, w) p = Add(m, b) {cut} y = Neg(u) z = Abs(v)"
    model = build("float[s, 2, 8] x", "float[s, 2, 4] y, float[s, 2, 5] z", body, **c)
    name = next(node.name for node in model.graph if node.op_type == "MatMul")
    after, log = as_ort(model, {"x": random(3, 2, 8)}, 1e-4, 1e-4)
    assert ops(after).count("MatMulIntegerToFloat") == 2 and log.counts["part_columns"] == 1
    assert {"Slice", "Split", "Add"}.isdisjoint(ops(after))
    products = [node for node in after.graph if node.op_type == "MatMulIntegerToFloat"]
    assert products[0].name == name and len({node.name for node in products}) == 2
    widths = [
        numbers.shape[1] for p in products if (numbers := graph.array(p.inputs[1])) is not None
    ]
    assert sorted(widths) == [4, 5]


def test_columns_read_twice_or_whole_stay_together(as_ort, build) -> None:
    c = parameters(8, 9) | {"last": np.array([2]), "i0": np.array([0]), "i4": np.array([4])}
    body = f"{QDQ} {W} p = MatMul(a, w) u = Slice(p, i0, i4, last) y = Neg(u) z = Abs(p)"
    model = build("float[s, 2, 8] x", "float[s, 2, 4] y, float[s, 2, 9] z", body, **c)
    after, log = as_ort(model, {"x": random(3, 2, 8)}, 1e-4, 1e-4)
    assert "Slice" in ops(after)
    reasons = [entry.reason for entry in log.entries if entry.outcome == "declined"]
    assert len(reasons) == 1 and "reads more than a range" in reasons[0]
