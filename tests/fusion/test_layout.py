"""Chains that only move axes collapse, unless a link of the chain is used elsewhere."""

from __future__ import annotations

import pytest

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_a_transpose_that_undoes_another_goes(fused) -> None:
    model, _ = fused(
        HEAD
        + """g (float[n, 3, 4] x) => (float[n, 3, 4] y) {
            a = Exp(x)
            b = Transpose<perm = [1, 2, 0]>(a)
            c = Transpose<perm = [2, 0, 1]>(b)
            y = Neg(c)
        }""",
        n=2,
    )
    assert ops(model) == ["Exp", "Neg"]


@pytest.mark.parametrize("perm", ["", "<perm = [0, 2, 1]>", "<perm = [1, 2, 0]>"])
def test_two_transposes_become_one(fused, perm: str) -> None:
    model, log = fused(
        HEAD
        + f"""g (float[2, 3, 4] x) => (float[?, ?, ?] y) {{
            b = Transpose<perm = [1, 0, 2]>(x)
            y = Transpose{perm}(b)
        }}"""
    )
    assert ops(model) == ["Transpose"]
    assert log.counts["merge_transposes"] == 1


def test_a_transpose_that_is_read_elsewhere_stays(fused) -> None:
    model, _ = fused(
        HEAD
        + """g (float[2, 3, 4] x) => (float[4, 3, 2] y, float[3, 2, 4] z) {
            b = Transpose<perm = [1, 0, 2]>(x)
            y = Transpose<perm = [2, 0, 1]>(b)
            z = Neg(b)
        }"""
    )
    assert ops(model) == ["Transpose", "Transpose", "Neg"]


def test_reshapes_collapse_and_a_round_trip_vanishes(fused) -> None:
    model, log = fused(
        HEAD
        + """g (float[n, 3, 4] x) => (float[n, 3, 4] y, float[n, 4, 3] z)
        <int64[2] flat = {-1, 12}, int64[3] back = {-1, 3, 4}, int64[3] other = {-1, 4, 3},
         int64[1] one = {1}> {
            a = Exp(x)
            b = Reshape(a, flat)
            c = Unsqueeze(b, one)
            d = Reshape(c, other)
            z = Neg(d)
            e = Reshape(a, flat)
            f = Reshape(e, back)
            y = Neg(f)
        }""",
        n=2,
    )
    assert sorted(ops(model)) == ["Exp", "Neg", "Neg", "Reshape"]
    assert log.counts["merge_reshapes"] >= 2


def test_a_computed_shape_with_one_dynamic_axis_is_written_down(fused) -> None:
    model, log = fused(
        HEAD
        + """g (float[n, 3, 4] x) => (float[n, 12] y)
        <int64[1] i = {0}, int64[1] twelve = {12}> {
            s = Shape(x)
            b = Gather(s, i)
            t = Concat<axis = 0>(b, twelve)
            y = Reshape(x, t)
        }""",
        n=2,
    )
    assert ops(model) == ["Reshape"]
    assert [v.const_value.numpy().tolist() for v in model.graph.initializers.values()] == [[-1, 12]]
    assert log.counts["settle_reshape"] == 1


def test_a_computed_shape_with_two_dynamic_axes_stays(fused) -> None:
    model, log = fused(
        HEAD
        + """g (float[n, m, 4] x) => (float[n, m, 2, 2] y)
        <int64[2] i = {0, 1}, int64[2] tail = {2, 2}> {
            s = Shape(x)
            b = Gather(s, i)
            t = Concat<axis = 0>(b, tail)
            y = Reshape(x, t)
        }""",
        n=2,
        m=3,
    )
    assert ops(model) == ["Shape", "Gather", "Concat", "Reshape"]
    assert "settle_reshape" not in log.counts


def test_a_reshape_that_copies_an_axis_is_left(fused) -> None:
    model, log = fused(
        HEAD
        + """g (float[2, 3, 4] x) => (float[6, 2, 2] y)
        <int64[2] flat = {6, 4}, int64[3] copy = {0, 2, 2}> {
            a = Reshape(x, flat)
            y = Reshape(a, copy)
        }"""
    )
    assert ops(model) == ["Reshape", "Reshape"]
    (entry,) = [e for e in log.entries if e.outcome == "declined"]
    assert "may copy an axis" in entry.reason


SWAP = """g (float[n, 2, 3, 4] x) => (float[n, 2, 4, 3] y)
    <int64[3] fold = {-1, 3, 4}, int64[4] unfold = {-1, 2, 4, 3}> {
        a = Exp(x)
        b = Reshape(a, fold)
        c = Transpose<perm = [0, 2, 1]>(b)
        d = Reshape(c, unfold)
        y = Neg(d)
    }"""


def test_a_batched_transpose_needs_no_reshapes(fused) -> None:
    model, log = fused(HEAD + SWAP, n=2)
    assert ops(model) == ["Exp", "Transpose", "Neg"]
    assert list(model.graph[1].attributes["perm"].as_ints()) == [0, 1, 3, 2]
    assert model.graph[1].outputs[0].name == "d"
    assert log.counts["swap_axes"] == 1


def test_a_batched_transpose_that_is_read_in_between_is_left(fused) -> None:
    text = SWAP.replace("(float[n, 2, 4, 3] y)", "(float[n, 2, 4, 3] y, float[?, 4, 3] c)")
    model, log = fused(HEAD + text, n=2)
    assert ops(model) == ["Exp", "Reshape", "Transpose", "Reshape", "Neg"]
    assert [e.rule for e in log.entries if e.outcome == "declined"] == ["swap_axes"]


def test_an_unfold_into_other_axes_is_left(fused) -> None:
    text = SWAP.replace("unfold = {-1, 2, 4, 3}", "unfold = {-1, 2, 12, 1}")
    model, _ = fused(HEAD + text.replace("float[n, 2, 4, 3] y", "float[n, 2, 12, 1] y"), n=2)
    assert ops(model).count("Reshape") == 2
