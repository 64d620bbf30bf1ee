"""A half-precision model in FP32: the same function, inputs and outputs as they were."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from optkit.craft.fusion import fuse
from optkit.craft.fusion.standard.widen import widen
from optkit.ground import graph

# constants of float16 are written as their bits: 15360 is 1, 16384 is 2
HALF = """<ir_version: 10, opset_import: ["" : 21]>
g (float16[N,6] x, int64[N,1] i, float16[6,8] w, float16[8] b) => (float16[N,8] y, float[N,8] z) {
  p = MatMul (x, w)
  s = Add (p, b)
  f = Cast <to = 1> (s)
  z = Relu (f)
  h = Cast <to = 10> (z)
  two = Constant <value = float16 {16384}> ()
  h2 = Mul (h, two)
  k = Cast <to = 10> (i)
  y = Add (h2, k)
}"""

BRANCH = """<ir_version: 10, opset_import: ["" : 21]>
g (bool c, float16[N,4] x, float16[4] b) => (float16[N,4] y) {
  y = If (c) <
    then_branch = t () => (float16[N,4] a) { one = Constant <value = float16 {15360}> ()
                                            a = Add (x, one) },
    else_branch = e () => (float16[N,4] d) { d = Mul (x, b) }
  >
}"""


@pytest.fixture
def half() -> Callable[[str], ir.Model]:
    def parse(text: str) -> ir.Model:
        model = ir.from_onnx_text(text)
        rng = np.random.default_rng(3)
        for value in list(model.graph.inputs):
            if value.name in ("w", "b"):
                assert value.shape is not None and value.dtype is not None
                numbers = rng.standard_normal(value.shape.numpy()).astype(value.dtype.numpy())
                value.const_value = ir.Tensor(numbers, name=value.name)
                model.graph.inputs.remove(value)
                model.graph.register_initializer(value)
        return graph.upgrade(model)

    return parse


def compute(model: ir.Model, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return list(ReferenceEvaluator(proto).run(None, feed))


def halves(model: ir.Model) -> set[str]:
    found = [v for g in model.graphs() for n in g for v in n.outputs]
    found += [v for g in model.graphs() for v in g.initializers.values()]
    return {str(v.name) for v in found if v.dtype == ir.DataType.FLOAT16}


@pytest.mark.parametrize("fused", [False, True])
def test_only_the_borders_stay_half(half: Callable[[str], ir.Model], fused: bool) -> None:
    before = half(HALF)
    after = before.clone()
    (entry,) = widen(after)
    if fused:
        fuse(after)
    assert entry.outcome == "applied" and "2 borders" in entry.reason
    assert graph.inputs(after) == graph.inputs(before)
    assert graph.outputs(after) == graph.outputs(before)
    assert halves(after) == {"y"}
    rng = np.random.default_rng(4)
    feed = {"x": rng.standard_normal((3, 6)).astype(np.float16), "i": np.array([[0], [1], [2]])}
    for old, new in zip(compute(before, feed), compute(after, feed), strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_allclose(new, old, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("taken", [True, False])
def test_branches_are_widened_with_what_they_capture(
    half: Callable[[str], ir.Model], taken: bool
) -> None:
    before = half(BRANCH)
    after = before.clone()
    widen(after)
    assert halves(after) == {"y"}
    feed = {"c": np.array(taken), "x": np.arange(8, dtype=np.float16).reshape(2, 4)}
    (old,), (new,) = compute(before, feed), compute(after, feed)
    np.testing.assert_allclose(new, old, rtol=1e-2)


def test_a_float_model_is_left_alone(half: Callable[[str], ir.Model]) -> None:
    model = half(HALF.replace("float16", "float").replace("10>", "1>"))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert widen(model) == ()
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_foreign_operators_keep_their_precision(half: Callable[[str], ir.Model]) -> None:
    model = half(HALF)
    next(n for n in model.graph if n.op_type == "Add").domain = "com.example"
    (entry,) = widen(model)
    assert entry.outcome == "declined" and "com.example.Add" in entry.reason
    assert "p" in halves(model)


def test_large_weights_stay_stored_as_they_are(
    half: Callable[[str], ir.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Cast behind them says the same as numbers written anew."""
    monkeypatch.setattr(sys.modules[widen.__module__], "_LARGE_BYTES", 2 * 6 * 8)
    whole, stored = half(HALF), half(HALF)
    widen(whole)
    (entry,) = widen(stored, inline_limit=2 * (6 * 8 + 8))
    assert "1 weights stored as they are" in entry.reason
    assert stored.graph.initializers["w"].dtype == ir.DataType.FLOAT16
    assert stored.graph.initializers["b"].dtype == ir.DataType.FLOAT
    assert halves(stored) - halves(whole) == {"w"}
    feed = {
        "x": np.random.default_rng(5).standard_normal((3, 6)).astype(np.float16),
        "i": np.arange(3).reshape(3, 1),
    }
    for a, b in zip(compute(whole, feed), compute(stored, feed), strict=True):
        np.testing.assert_array_equal(a, b)


def test_large_weights_below_the_limit_become_float(half: Callable[[str], ir.Model]) -> None:
    model = half(HALF)
    widen(model, inline_limit=1000)
    assert halves(model) == {"y"}


def test_of_a_large_table_only_the_rows_are_cast(
    half: Callable[[str], ir.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[widen.__module__], "_LARGE_BYTES", 2 * 6 * 8)
    before = half("""<ir_version: 10, opset_import: ["" : 21]>
    g (int64[N,3] i, float16[16,6] w) => (float16[N,3,6] y) { r = Gather (w, i) y = Add (r, r) }""")
    after = before.clone()
    widen(after, inline_limit=1)
    assert halves(after) == {"w", "r", "y"}
    (cast,) = after.graph[0].outputs[0].consumers()
    assert cast.op_type == "Cast" and cast.outputs[0].dtype == ir.DataType.FLOAT
    feed = {"i": np.array([[0, 5, 15], [3, 3, 1]])}
    np.testing.assert_allclose(compute(after, feed)[0], compute(before, feed)[0], rtol=1e-3)


ROUNDED = {
    "there and back": "h = Cast<to = 10> (p) y = Cast<to = 1> (h)",
    "bfloat16": "h = Cast<to = 16> (p) y = Cast<to = 1> (h)",
    "moved between": "h = Cast<to = 10> (p) t = Transpose<perm = [1, 0]> (h) "
    "u = Transpose<perm = [1, 0]> (t) y = Cast<to = 1> (u)",
    "through both formats": "h = Cast<to = 10> (p) b = Cast<to = 16> (h) y = Cast<to = 1> (b)",
    "also computed with": "h = Cast<to = 10> (p) k = Add (h, h) f = Cast<to = 1> (h) "
    "g = Cast<to = 1> (k) y = Max (f, g)",
    "overflowing": "q = Mul (p, p) r = Mul (q, q) h = Cast<to = 10> (r) y = Cast<to = 1> (h)",
}


@pytest.mark.parametrize("case", ROUNDED)
def test_explicit_roundings_of_a_float_model_stay(case: str) -> None:
    """A Cast to half and back is an operation like any other: it rounds, and overflows."""
    given = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[3,4] x) => (float[3,4] y) <float n = {{7.123456}}>
        {{ p = Mul (x, n) {ROUNDED[case]} }}"""
    )
    model = graph.upgrade(ir.from_proto(given))
    widen(model)
    fuse(model)
    x = np.random.default_rng(5).standard_normal((3, 4)).astype(np.float32) * 4
    (expected,) = ReferenceEvaluator(given).run(None, {"x": x})
    (found,) = compute(model, {"x": x})
    exact = case != "also computed with"
    np.testing.assert_allclose(found, expected, rtol=0 if exact else 1e-3)
    if case == "overflowing":
        assert np.isinf(expected).any()


@pytest.mark.parametrize("used", [True, False])
def test_a_half_constant_that_is_also_an_output(used: bool) -> None:
    given = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float16[4] x) => (float16[4] y, float16[4] w)
        <float16[4] w = {{15360, 16384, 15360, 16384}}>
        {{ y = {"Add (x, w)" if used else "Neg (x)"} }}"""
    )
    model = graph.upgrade(ir.from_proto(given))
    widen(model)
    fuse(model)
    x = np.arange(4).astype(np.float16)
    for old, new in zip(ReferenceEvaluator(given).run(None, {"x": x}), compute(model, {"x": x}),
                        strict=True):  # fmt: skip
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(old, new)
