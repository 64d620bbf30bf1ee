"""Products in every form that ONNX allows become the form whose weight can be quantized: the
outputs stay equal to those of the unrewritten graph, and every product is planned in INT8."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.fusion import arrange, fuse
from optkit.craft.fusion.rule import GROWTH_LIMIT_BYTES
from optkit.craft.quantization.placement.assign import assign
from optkit.facts.assignment import Scheme
from optkit.facts.precisions import PRECISIONS
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.runtimes import backend
from tests.fusion.conftest import random_feed, run
from tests.fusion.test_linear import build, node, numbers

_RULES = backend("onnxruntime").rules(target("cpu"), PRECISIONS["int8"])
_SCHEME = Scheme(PRECISIONS["int8"], "fp32", {PRECISIONS["int8"]: _RULES})
M, K, N = 5, 6, 7


def arranged(model: ir.Model, **axes: int) -> ir.Model:
    """The arranged graph, compared with the given one on one input."""
    after = model.clone()
    fuse(after)
    before, log = after.clone(), arrange(after)
    feed = random_feed(model, axes)
    for old, new in zip(run(model, feed), run(after, feed), strict=True):
        assert old.shape == new.shape and old.dtype == new.dtype
        np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-5)
    assert graph.inputs(after) == graph.inputs(before)
    assert [o.name for o in graph.outputs(after)] == [o.name for o in graph.outputs(before)]
    assert arrange(after).counts == {}, log.counts  # a fixpoint
    return after


def in_float(model: ir.Model) -> dict[str, str]:
    found = assign(model, _SCHEME)
    assert found.nodes
    return found.reasons


@st.composite
def gemms(draw: st.DrawFn) -> ir.Model:
    left = draw(st.booleans())
    turned = {name: draw(st.integers(0, 1)) for name in ("transA", "transB")}
    a = (K, M) if turned["transA"] else (M, K)
    b = (N, K) if turned["transB"] else (K, N)
    factors = st.sampled_from([1.0, 0.0, -0.5, 3.0])
    attributes = {**turned, "alpha": draw(factors.filter(bool)), "beta": draw(factors)}
    bias = draw(st.sampled_from([None, (), (1,), (N,), (1, N), (M, 1), (M, N), (1, 1)]))
    computed = bias is not None and len(bias) > 0 and draw(st.booleans())
    constants = {"w": numbers(*(a if left else b))}
    names = ["w", "x"] if left else ["x", "w"]
    inputs: Sequence[tuple[str, list[int]]] = ()
    if bias is not None:
        names.append("c")
        if computed:
            inputs = (("c", list(bias)),)
        else:
            constants["c"] = numbers(*bias)
    shape = list(b if left else a)
    nodes = [node("Gemm", names, "h", **attributes), node("Tanh", ["h"], "y")]
    return build(nodes, constants, shape, inputs=tuple(inputs))


@settings(max_examples=120)
@given(gemms())
def test_every_gemm_is_planned_in_int8_and_computes_the_same(model: ir.Model) -> None:
    assert in_float(arranged(model)) == {}


@st.composite
def matmuls(draw: st.DrawFn) -> ir.Model:
    """Weights of rank 1 to 4 on either side, that ONNX can multiply with an activation."""
    left = draw(st.booleans())
    rank = draw(st.integers(1, 4))
    stacked = [3, 2][-(rank - 2) :] if rank > 2 else []
    if stacked and draw(st.booleans()):
        stacked = [1] * len(stacked)
    own = [K] if rank == 1 else [*stacked, M, K] if left else [*stacked, K, N]
    batches = [[], ["n"]]
    if len(stacked) == 1:
        batches += [[*stacked], ["n", *stacked]] if stacked[0] > 1 else [["n", 4]]
    if set(stacked) <= {1}:
        batches.append(["n", 4])
    batch = draw(st.sampled_from(batches if set(stacked) <= {1} else
                                 [b for b in batches if b != ["n"]]))  # fmt: skip
    other = [*batch, K, N] if left else [*batch, M, K]
    if not batch and draw(st.booleans()):
        other = [K]
    names = ["w", "x"] if left else ["x", "w"]
    nodes = [node("MatMul", names, "h"), node("Tanh", ["h"], "y")]
    return build(nodes, {"w": numbers(*own)}, other)


@settings(max_examples=120)
@given(matmuls())
def test_every_matmul_is_planned_in_int8_and_computes_the_same(model: ir.Model) -> None:
    assert in_float(arranged(model, n=2)) == {}


def test_a_stack_that_lies_along_a_free_axis_stays_and_says_so() -> None:
    nodes = [node("MatMul", ["x", "w"], "h"), node("Tanh", ["h"], "y")]
    after = build(nodes, {"w": numbers(3, K, N)}, ["n", M, K])
    log = arrange(after)
    assert "one static axis" in log.entries[0].reason
    assert "not a matrix" in next(iter(in_float(after).values()))


def test_many_stacked_matrices_stay_one_product() -> None:
    nodes = [node("MatMul", ["x", "w"], "h"), node("Tanh", ["h"], "y")]
    after = build(nodes, {"w": numbers(17, K, N)}, [17, M, K])
    assert arrange(after).counts == {}


def test_a_large_shared_weight_is_not_copied_for_its_factor() -> None:
    rows = GROWTH_LIMIT_BYTES // 4 // N + 1
    nodes = [node("Gemm", ["x", "w"], "g", alpha=0.5), node("MatMul", ["x", "w"], "m"),
             node("Add", ["g", "m"], "h"), node("Tanh", ["h"], "y")]  # fmt: skip
    model = build(nodes, {"w": numbers(rows, N) / 99}, [2, rows])
    after = arranged(model)
    assert list(after.graph.initializers) == ["w", "Gemm_g.factor"]
    assert in_float(after) == {}


def test_a_factor_that_would_overflow_the_weight_stays_beside_it() -> None:
    nodes = [node("Gemm", ["x", "w"], "h", alpha=1e30), node("Tanh", ["h"], "y")]
    after = build(nodes, {"w": np.full((K, N), 1e30, np.float32)}, [M, K])
    arrange(after)
    assert np.isfinite(graph.array(after.graph.initializers["w"])).all()
    assert in_float(after) == {}


def test_a_product_of_two_activations_stays() -> None:
    nodes = [node("MatMul", ["x", "z"], "y")]
    after = build(nodes, {}, [3, K, K], inputs=(("z", [K, K]),))
    assert arrange(after).counts == {}


@pytest.mark.parametrize("attributes", [{}, {"transB": 1}])
def test_a_plain_product_is_left_as_it_is(attributes: dict[str, int]) -> None:
    shape = (N, K) if attributes else (K, N)
    nodes = [node("Gemm", ["x", "w", "b"], "h", **attributes), node("Tanh", ["h"], "y")]
    after = build(nodes, {"w": numbers(*shape), "b": numbers(N)}, [M, K])
    assert arrange(after).entries == ()


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("before", "behind"), [(True, False), (False, True), (True, True), (False, False)]
)
def test_a_convolution_of_one_row_beside_a_transpose_is_a_product(
    before: bool, behind: bool, biased: bool
) -> None:
    """The graph has no more Transposes than before."""
    constants = {"w": numbers(N, K, 1), "b": numbers(N)}
    read = ["w", "b"] if biased else ["w"]
    nodes = [node("Transpose", ["x"], "t", perm=[0, 2, 1])] if before else []
    nodes.append(node("Conv", ["t" if before else "x", *read], "c" if behind else "y"))
    if behind:
        nodes.append(node("Transpose", ["c"], "y", perm=[0, 2, 1]))
    model = build(nodes, constants, ["n", 9, K] if before else ["n", K, 9])
    name = nodes[-2 if behind else -1].name
    after = arranged(model, n=2)
    found = [each.op_type for each in after.graph]
    assert found.count("Conv") == (0 if before or behind else 1)
    assert found.count("Transpose") == (1 if before != behind else 0)
    assert any(each.name == name for each in after.graph)


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({"strides": [2]}, (8, 8, 1)),
        ({"pads": [1, 0]}, (8, 8, 1)),
        ({"group": 2}, (8, 4, 1)),
        ({}, (8, 8, 3)),
    ],
    ids=["strides", "pads", "groups", "kernel"],
)
def test_other_convolutions_stay(attributes: dict[str, object], shape: tuple[int, ...]) -> None:
    nodes = [
        node("Transpose", ["x"], "t", perm=[0, 2, 1]),
        node("Conv", ["t", "w"], "y", **attributes),
    ]
    after = arranged(build(nodes, {"w": numbers(*shape)}, ["n", 9, 8]), n=2)
    assert [each.op_type for each in after.graph] == ["Transpose", "Conv"]
