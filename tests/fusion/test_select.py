"""What is selected at the end is selected early, past every operator that keeps rows apart."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from optkit.ground import graph

HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[b, 5, 4] x) => ({}) {}'
CONSTANTS = """<float[4] g = {1, 2, 3, 4}, float[4] c = {0.5, -1, 2, 0.25}, int64 i0 = {0},
    int64 last = {-1}, int64[1] l0 = {0}, int64[1] l1 = {1}, int64[1] l2 = {2}, int64[1] l4 = {4},
    int64[1] minus = {-1}, int64[3] wide = {-1, 5, 4}, int64[4] apart = {-1, 5, 2, 2},
    int64[3] flat = {-1, 10, 2}, float[5, 4] rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
    15, 16, 17, 18, 19, 20}, float[4, 4] w = {1, -1, 0, 2, 0, 1, 1, 0, 2, 0, 1, -2, 1, 1, 1, 1}>"""
SELECT = {
    "one": ("float[b, 4] y", "y = Gather<axis = 1>(t, i0)"),
    "last": ("float[b, 4] y", "y = Gather<axis = 1>(t, last)"),
    "range": ("float[b, 2, 4] y", "u = Slice(t, l2, l4, l1) y = Neg(u)"),
}
ROWWISE = {
    "elementwise": "r = Relu(x) a = Gelu(r) t = Mul(a, c)",
    "constant per row": "t = Add(x, rows)",
    "norm": "t = LayerNormalization<axis = -1>(x, g, c)",
    "softmax": "t = Softmax<axis = -1>(x)",
    "product": "p = MatMul(x, w) t = Add(p, c)",
    "mean of squares": "s = Mul(x, x) m = ReduceMean<keepdims = 1>(s, minus) t = Div(x, m)",
    "heads": "e = Exp(x) h = Reshape(e, apart) n = Neg(h) r = Reshape(n, wide) t = Abs(r)",
    "residual": "e = Exp(x) n = LayerNormalization(e, g, c) p = MatMul(n, w) t = Add(p, e)",
}


def model(body: str, select: str) -> ir.Model:
    outputs, tail = SELECT[select]
    text = HEAD.format(outputs, CONSTANTS) + f" {{ {body} {tail} }}"
    built = ir.from_onnx_text(text)
    for node in built.graph:
        node.name = node.outputs[0].name
    return built


def longest(value_model: ir.Model) -> int:
    """The most rows that any node but the selection itself computes."""
    made = [v for node in value_model.graph for v in node.outputs if v.shape is not None]
    return max(int(v.shape[1]) for v in made if len(v.shape) > 2 and isinstance(v.shape[1], int))


@pytest.mark.parametrize("body", ROWWISE)
@pytest.mark.parametrize("select", SELECT)
def test_rows_that_nobody_reads_are_not_computed(fused, body: str, select: str) -> None:
    before = model(ROWWISE[body], select)
    names = {node.name: node.op_type for node in before.graph}
    after, log = fused(before, b=3)
    assert log.counts["select_early"] >= 1
    assert longest(after) == (2 if select == "range" else 1)
    assert [n.op_type for n in after.graph].count("Slice") == 1  # branches share it
    kept = {n.name: n.op_type for n in after.graph if n.op_type in ("MatMul", "LayerNormalization")}
    assert kept.items() <= names.items()


def test_attention_keeps_its_keys_and_values(fused) -> None:
    """Queries of one token; all tokens as keys and values."""
    body = (
        "k = MatMul(x, w) q = Neg(k) v = Exp(k) kt = Transpose<perm = [0, 2, 1]>(k) "
        "s = MatMul(q, kt) p = Softmax<axis = -1>(s) o = MatMul(p, v) t = Add(o, x)"
    )
    after, _ = fused(model(body, "one"), b=3)
    shapes = {n.name: list(n.outputs[0].shape or ())[1:] for n in after.graph}
    assert shapes["q"] == shapes["o"] == [1, 4] and shapes["p"] == [1, 5]
    assert shapes["v"] == [5, 4] and shapes["kt"] == [4, 5]


STAYS = {
    "a norm over the rows": "t = LayerNormalization<axis = 1>(x, rows, rows)",
    "a softmax over the rows": "t = Softmax<axis = 1>(x)",
    "rows on the right": "s = Transpose<perm = [0, 2, 1]>(x) r = MatMul(s, x) "
    "v = MatMul(x, r) c1 = CumSum(v, i1) t = CumSum(c1, i1)",
    "rows that are mixed": "f = Reshape(x, flat) n = Neg(f) t = Reshape(n, wide)",
}


@pytest.mark.parametrize("case", STAYS)
def test_rows_that_depend_on_one_another_are_all_computed(fused, case: str) -> None:
    built = model(STAYS[case], "range") if "CumSum" not in STAYS[case] else None
    if built is None:
        text = HEAD.format(
            SELECT["range"][0], CONSTANTS.replace("int64 i0", "int64 i1 = {1}, int64 i0")
        )
        built = ir.from_onnx_text(f"{text} {{ {STAYS[case]} {SELECT['range'][1]} }}")
    after, log = fused(built, b=3)
    assert "select_early" not in log.counts
    assert longest(after) >= 5


def test_a_result_that_is_read_whole_as_well_stays(fused) -> None:
    outputs = "float[b, 4] y, float[b, 5, 4] z"
    text = HEAD.format(outputs, CONSTANTS)
    body = "t = Exp(x) y = Gather<axis = 1>(t, i0) z = Neg(t)"
    after, log = fused(f"{text} {{ {body} }}", b=3)
    assert log.counts == {} or set(log.counts) == {"remove_unused"}
    assert [n.op_type for n in after.graph] == ["Exp", "Gather", "Neg"]


def test_two_selections_of_one_value_stay(fused) -> None:
    outputs = "float[b, 4] y, float[b, 4] z"
    body = "t = Exp(x) y = Gather<axis = 1>(t, i0) z = Gather<axis = 1>(t, last)"
    after, log = fused(f"{HEAD.format(outputs, CONSTANTS)} {{ {body} }}", b=3)
    assert "select_one" not in log.counts and len(after.graph) == 3


def test_a_dynamic_number_of_rows(fused) -> None:
    text = HEAD.replace("b, 5, 4", "b, s, 4").format("float[b, 4] y", CONSTANTS)
    body = "p = MatMul(x, w) t = Add(p, x) y = Gather<axis = 1>(t, last)"
    after, log = fused(f"{text} {{ {body} }}", b=2, s=6)
    assert log.counts["select_early"] == 1
    assert [n.op_type for n in after.graph] == ["Slice", "MatMul", "Add", "Squeeze"]


def test_an_operand_whose_rows_are_not_known_is_not_cut(fused) -> None:
    """It may broadcast: one row for all."""
    text = HEAD.replace("(float[b, 5, 4] x)", "(float[b, s, 4] x, float[b, r, 4] z)")
    body = "t = Add(x, z) y = Gather<axis = 1>(t, i0)"
    after, log = fused(f"{text.format('float[b, 4] y', CONSTANTS)} {{ {body} }}", b=2, s=3, r=3)
    assert "select_one" not in log.counts and len(after.graph) == 2


def test_the_numbers_are_those_of_the_rows(fused) -> None:
    """Against numpy, to be sure that it is row 0 and not another."""
    after, _ = fused(model(ROWWISE["product"], "one"), b=2)
    product = next(n for n in after.graph if n.op_type == "MatMul")
    cut = product.inputs[0].producer()
    assert cut.op_type == "Slice"
    ends = [graph.array(v) for v in cut.inputs[1:4]]
    x = np.arange(40, dtype=np.float32).reshape(2, 5, 4)
    index = [slice(None)] * 3
    index[int(ends[2][0])] = slice(int(ends[0][0]), int(ends[1][0]))
    np.testing.assert_array_equal(x[tuple(index)], x[:, :1])
