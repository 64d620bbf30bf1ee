"""Nodes that change nothing go; the same nodes with other parameters stay."""

from __future__ import annotations

import pytest

from optkit.ground import graph

HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[n, 4] x) => (float[n, 4] y)'
CONSTANTS = """<float zero = {0.0}, float one = {1.0}, float[1, 1, 1] deep = {0.0}, bool no = {0},
    bool yes = {1}, int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] i4 = {4}, int64[1] im1 = {-1},
    int64[1] im5 = {-5}, int64[2] same = {0, 4}, int64[4] none = {0, 0, 0, 0}>"""

NOTHING = {
    "Identity(a)",
    "Dropout(a)",
    "Dropout(a, half, no)",
    "Cast<to = 1>(a)",
    "CastLike(a, x)",
    "Reshape(a, same)",
    "Expand(a, i1)",
    "Transpose<perm = [0, 1]>(a)",
    "Slice(a, i0, i4, i1)",
    "Pad(a, none)",
    "Concat<axis = 1>(a)",
    "Add(a, zero)",
    "Add(zero, a)",
    "Sub(a, zero)",
    "Mul(one, a)",
    "Div(a, one)",
    "Flatten(a)",
}
SOMETHING = {
    "Add(a, one)",
    "Sub(zero, a)",
    "Div(one, a)",
    "Mul(a, zero)",
    "Slice(a, im1, im5, i1, im1)",  # reversed: the same shape, another order
    "Cast<to = 10>(a)",
}


def build(call: str) -> str:
    constants = CONSTANTS.replace("float one", "float half = {0.5}, float one")
    tail = "c = Cast<to = 1>(b)" if "to = 10" in call else "c = Neg(b)"
    return f"{HEAD} {constants} {{ a = Exp(x)  b = {call}  {tail}  y = Abs(c) }}"


@pytest.mark.parametrize("call", sorted(NOTHING))
def test_what_changes_nothing_goes(fused, call: str) -> None:
    model, log = fused(build(call), n=3)
    assert [n.op_type for n in model.graph] == ["Exp", "Neg", "Abs"]
    assert log.counts["remove_noop"] == 1


@pytest.mark.parametrize("call", sorted(SOMETHING))
def test_what_changes_something_stays(fused, call: str) -> None:
    model, log = fused(build(call), n=3)
    assert len(model.graph) == 4
    assert "remove_noop" not in log.counts


def test_adding_zero_that_adds_an_axis_stays(fused) -> None:
    text = HEAD.replace("(float[n, 4] y)", "(float[1, n, 4] y)")
    model, _ = fused(f"{text} {CONSTANTS} {{ a = Exp(x)  y = Add(a, deep) }}", n=3)
    assert [n.op_type for n in model.graph] == ["Exp", "Add"]


def test_the_name_of_a_graph_output_moves_to_what_computes_it(fused) -> None:
    model, _ = fused(f"{HEAD} {{ a = Exp(x)  b = Identity(a)  y = Identity(b) }}", n=3)
    assert [n.outputs[0].name for n in model.graph] == ["y"]


def test_an_output_that_repeats_an_input_or_another_output_keeps_its_node(fused) -> None:
    text = HEAD.replace("(float[n, 4] y)", "(float[n, 4] y, float[n, 4] z, float[n, 4] w)")
    model, log = fused(f"{text} {{ y = Identity(x)  z = Exp(x)  w = Identity(z) }}", n=3)
    assert [n.op_type for n in model.graph] == ["Identity", "Exp", "Identity"]
    reasons = {e.reason for e in log.entries if e.outcome == "declined"}
    assert reasons == {"its result is a graph output that must keep a node of its own"}


def test_dropout_whose_mask_is_used_stays(fused) -> None:
    text = HEAD.replace("(float[n, 4] y)", "(float[n, 4] y, bool[n, 4] m)")
    model, _ = fused(f"{text} {{ a = Exp(x)  b, m = Dropout(a)  y = Neg(b) }}", n=3)
    assert [n.op_type for n in model.graph] == ["Exp", "Dropout", "Neg"]


def test_dead_nodes_and_unused_constants_go(fused) -> None:
    model, log = fused(
        f"{HEAD} <float k = {{2.0}}> {{ a = Exp(x)  b = Mul(a, k)  c = Neg(b)  y = Abs(x) }}", n=3
    )
    assert [n.op_type for n in model.graph] == ["Abs"]
    assert not model.graph.initializers
    assert log.counts == {"remove_dead": 3, "remove_unused": 1}


def test_a_value_that_only_a_subgraph_reads_is_alive(fused) -> None:
    model, _ = fused(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[n, 4] x, bool c) => (float[n, 4] y) {
            a = Exp(x)
            b = Identity(a)
            y = If(c) <
                then_branch = t () => (float[n, 4] u) { u = Neg(b) },
                else_branch = e () => (float[n, 4] v) { v = Abs(b) }
            >
        }""",
        n=3,
    )
    assert [n.op_type for n in model.graph] == ["Exp", "If"]
    assert graph.inputs(model)[1].name == "c"
