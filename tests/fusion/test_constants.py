"""Constant folding: what is computed ahead, and what is left because it would grow the model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion import fuse
from optkit.craft.fusion.rule import GROWTH_LIMIT_BYTES
from optkit.ground import graph

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_a_chain_of_constants_becomes_one(fused) -> None:
    model, log = fused(
        HEAD
        + """g (float[n, 2] x) => (float[n, 2] y)
        <float[2] a = {1.0, 2.0}, float[2] b = {3.0, 5.0}> {
            c = Mul(a, b)
            d = Neg(c)
            y = Add(x, d)
        }""",
        n=3,
    )
    assert ops(model) == ["Add"]
    np.testing.assert_array_equal(graph.array(model.graph.initializers["d"]), [-3, -10])
    assert log.counts["fold_constants"] == 2


def test_the_transposed_weight_of_a_linear_layer_is_stored_transposed(fused) -> None:
    model, _ = fused(
        HEAD
        + """g (float[n, 3] x) => (float[n, 2] y)
        <float[2, 3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
            t = Transpose<perm = [1, 0]>(w)
            y = MatMul(x, t)
        }""",
        n=3,
    )
    assert ops(model) == ["MatMul"]
    assert list(model.graph.initializers) == ["t"]


def test_the_static_part_of_a_shape_is_a_constant(fused) -> None:
    model, log = fused(
        HEAD
        + """g (float[n, 4, 6] x) => (float[n, 24] y)
        <int64 one = {1}, int64 two = {2}, int64[1] minus = {-1}, int64[1] zero = {0}> {
            s = Shape(x)
            h = Gather(s, one)
            w = Gather(s, two)
            hw = Mul(h, w)
            flat = Unsqueeze(hw, zero)
            target = Concat<axis = 0>(minus, flat)
            y = Reshape(x, target)
        }""",
        n=3,
    )
    assert ops(model) == ["Reshape"]
    assert log.counts["fold_shapes"] == 2


def test_a_dynamic_axis_is_not_a_constant(fused) -> None:
    model, _ = fused(
        HEAD
        + """g (float[n, 4] x) => (int64[1] y)
        <int64[1] i = {0}> { s = Shape(x)  t = Gather(s, i)  y = Add(t, t) }""",
        n=3,
    )
    assert ops(model) == ["Shape", "Gather", "Add"]


def test_a_fold_that_grows_the_model_is_declined(fused) -> None:
    size = GROWTH_LIMIT_BYTES // 4 + 4
    model, log = fused(
        HEAD
        + f"""g (float[n, 1] x) => (float[n, {size}] y)
        <float[1] a = {{1.5}}, int64[1] s = {{{size}}}> {{ b = Expand(a, s)  y = Add(x, b) }}""",
        n=2,
    )
    assert ops(model) == ["Expand", "Add"]
    (entry,) = [e for e in log.entries if e.outcome == "declined"]
    assert (entry.rule, entry.reason) == (
        "fold_constants",
        f"its result would add {GROWTH_LIMIT_BYTES + 4:,} bytes to the model",
    )


def test_a_result_of_unknown_size_is_not_computed(fused) -> None:
    _, log = fused(
        HEAD
        + """g (float[n, 1] x) => (float[n, 1] y)
        <float[3] a = {1.0, 0.0, 2.0}, int64[1] k = {0}> {
            i = NonZero(a)
            j = Cast<to = 1>(i)
            m = ReduceMax(j)
            y = Add(x, m)
        }""",
        n=2,
    )
    reasons = {e.node: e.reason for e in log.entries if e.outcome == "declined"}
    assert list(reasons.values()) == ["the size of its result is not known beforehand"]


def test_a_large_result_is_declined_before_allocation() -> None:
    text = """g (float[n, 1] x) => (float[n, 1] y, int64[2] z)
        <int64[2] s = {8000, 8000}> {
            b = ConstantOfShape(s)
            z = Shape(b)
            y = Identity(x)
        }"""
    model = graph.upgrade(ir.from_onnx_text(HEAD + text))
    log = fuse(model)
    declined = {e.rule: e.reason for e in log.entries if e.outcome == "declined"}
    assert "would add 255,999,984 bytes" in declined["fold_constants"]


def test_quantized_weights_stay_quantized(fused) -> None:
    model, _ = fused(
        HEAD
        + """g (float[n, 2] x) => (float[n, 2] y)
        <int8[2, 2] q = {1, 2, 3, 4}, float s = {0.5}> {
            w = DequantizeLinear(q, s)
            y = MatMul(x, w)
        }""",
        n=2,
    )
    assert ops(model) == ["DequantizeLinear", "MatMul"]


def test_castlike_becomes_a_cast_and_then_a_constant(fused) -> None:
    model, log = fused(
        HEAD
        + """g (float[n, 2] x) => (float[n, 2] y)
        <int64 k = {3}> { c = CastLike(k, x)  y = Mul(x, c) }""",
        n=2,
    )
    assert ops(model) == ["Mul"]
    assert log.counts["settle_castlike"] == 1
    assert graph.array(model.graph.initializers["c"]).dtype == np.float32


def test_a_constant_that_is_a_graph_output_stays_a_node(fused) -> None:
    model, log = fused(
        HEAD
        + """g (float[n] x) => (float[n] y, float[2] z)
        <float[2] a = {1.0, 2.0}> { z = Neg(a)  y = Relu(x) }""",
        n=2,
    )
    assert sorted(ops(model)) == ["Neg", "Relu"]
    assert "its result is a graph output" in [e.reason for e in log.entries]
