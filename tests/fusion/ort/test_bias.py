"""A float bias between codes becomes the int32 that the integer kernel adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from optkit.craft.fusion.ort import to_ort
from optkit.craft.quantization.numerics.scales import Scale, floor_for_bias
from optkit.facts.precisions import BIAS_STEPS
from optkit.ground import graph
from tests import codes

CONV = "p = Conv <pads = [1, 1, 1, 1]> (a, w, b) r = Relu(p)"
GEMM = "r = Gemm <transB = 1> (a, w, b)"
BODY = """q = QuantizeLinear(x, sa, za) a = DequantizeLinear(q, sa, za)
    w = DequantizeLinear<axis = 0>(wq, sw) {product}
    c = QuantizeLinear(r, sy, zy) y = DequantizeLinear(c, sy, zy)"""


def constants(shape: tuple[int, ...], channels: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(shape))
    size = (shape[0],) if channels else ()
    return {
        "sa": np.array(0.02, np.float32), "za": np.array(117, np.uint8),
        "wq": codes.weights(rng, shape),
        "sw": rng.uniform(0.001, 0.01, size).astype(np.float32),
        "b": rng.standard_normal(shape[0]).astype(np.float32),
        "sy": np.array(0.05, np.float32), "zy": np.array(0, np.uint8),
    }  # fmt: skip


def model(build: Any, product: str, **given: np.ndarray) -> ir.Model:
    shape = (6, 4, 3, 3) if product.startswith("p = Conv") else (6, 4)
    sizes = ("N, 4, 8, 8", "N, 6, 8, 8") if len(shape) == 4 else ("N, 4", "N, 6")
    made: ir.Model = build(
        f"float[{sizes[0]}] x", f"float[{sizes[1]}] y", BODY.format(product=product),
        **{**constants(shape), **given},
    )  # fmt: skip
    return made


def feed(product: str) -> dict[str, np.ndarray]:
    shape = (3, 4, 8, 8) if product.startswith("p = Conv") else (64, 4)
    return {"x": np.random.default_rng(3).standard_normal(shape).astype(np.float32)}


def reference(model: ir.Model, feed: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(ReferenceEvaluator(ir.to_proto(model)).run(None, feed)[0])


@pytest.mark.parametrize("channels", [True, False])
@pytest.mark.parametrize("product", [CONV, GEMM])
def test_a_float_bias_becomes_int32(build: Any, product: str, channels: bool) -> None:
    shape = (6, 4, 3, 3) if product == CONV else (6, 4)
    body = model(build, product, **constants(shape, channels))
    given = feed(product)
    expected = reference(body, given)
    log = to_ort(body)
    assert log.counts["integer_bias"] == 1
    node = next(node for node in body.graph if node.op_type in ("Conv", "Gemm"))
    made = node.inputs[2].producer()
    assert made is not None and made.op_type == "DequantizeLinear"
    assert made.inputs[0].dtype == ir.DataType.INT32
    found = reference(body, given)
    # half a step of the sum moves a result across the middle between two codes now and then
    assert np.abs(found - expected).max() < 0.051
    assert (found == expected).mean() > 0.99


@given(bias=st.lists(st.floats(-1e4, 1e4, width=32), min_size=6, max_size=6))
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_codes_are_the_nearest(build: Any, bias: list[float]) -> None:
    body = model(build, GEMM, b=np.array(bias, np.float32))
    to_ort(body)
    (made,) = (node for node in body.graph if node.inputs[0].dtype == ir.DataType.INT32)
    values, scale = (graph.array(value) for value in made.inputs)
    wanted = constants((6, 4))
    np.testing.assert_array_equal(scale, wanted["sa"] * wanted["sw"])
    error = np.abs(values * scale.astype(np.float64) - np.array(bias, np.float32))
    assert (error <= scale / 2 * (1 + 1e-6)).all()


@pytest.mark.parametrize(("steps", "counted"), [(BIAS_STEPS, 1), (BIAS_STEPS * (1 + 2**-23), None)])
def test_the_limit_is_that_of_the_quantizer(build: Any, steps: float, counted: int | None) -> None:
    """The largest bias for which the quantizer raises no scale."""
    one = np.array(1, np.float32)
    bias = np.full(6, steps, np.float32)
    floor = floor_for_bias(bias, Scale(one, np.array(117), 0))
    assert bool((floor <= 1).all()) == (counted is not None)
    log = to_ort(model(build, GEMM, sa=one, sw=np.ones(6, np.float32), b=bias))
    assert log.counts.get("integer_bias") == counted


@pytest.mark.parametrize(
    ("product", "changed", "reason"),
    [
        (GEMM.replace("transB = 1", "transB = 1, beta = 2.0"), {}, "beta is not 1"),
        (CONV, {"b": np.full(6, 1e9, np.float32)}, "more steps than an int32 sum can hold"),
        (GEMM, {"sa": np.full(4, 0.02, np.float32), "za": np.full(4, 117, np.uint8)},
         "not one per tensor"),
    ],
)  # fmt: skip
def test_a_bias_stays_float_with_the_reason(
    build: Any, product: str, changed: Any, reason: str
) -> None:
    body = model(build, product, **changed)
    log = to_ort(body)
    assert "integer_bias" not in log.counts
    assert any(reason in e.reason for e in log.entries if e.outcome == "declined")


def test_a_float_result_keeps_the_float_bias(build: Any) -> None:
    body = BODY.format(product=CONV).split("c = ")[0] + "y = Neg(r)"
    kept = build("float[N, 4, 8, 8] x", "float[N, 6, 8, 8] y", body, **constants((6, 4, 3, 3)))
    assert "integer_bias" not in to_ort(kept).counts
