"""FP16 cast: valid and close to FP32, correct where half precision is not enough, and without
needless Casts."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from optkit.craft.precision_cast.cast import CastLog, to_half
from optkit.ground import graph

HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
Feed = dict[str, np.ndarray]


def run(model: ir.Model, feed: Feed) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def cast(source: str | ir.Model) -> tuple[ir.Model, ir.Model, CastLog]:
    """(FP32 model, its cast copy, log), with everything that always holds asserted."""
    given = ir.from_onnx_text(HEAD + source) if isinstance(source, str) else source
    before = graph.infer_shapes(given)
    graph.ensure_names(before)
    after = before.clone()
    log = to_half(after)
    assert graph.inputs(after) == graph.inputs(before)
    assert graph.outputs(after) == graph.outputs(before)
    assert {n.name for n in before.graph} <= {n.name for n in after.graph} | idle_casts(before)
    new = graph.value_names(after) - graph.value_names(before)
    assert new == set(log.aliases)
    assert set(log.aliases.values()) <= graph.value_names(before)
    assert_casts_are_needed(
        [n for n in after.graph if n.name not in {b.name for b in before.graph}]
    )
    return before, after, log


def idle_casts(model: ir.Model) -> set[str | None]:
    return {n.name for n in model.graph if n.op_type == "Cast"}


def assert_casts_are_needed(made: list[ir.Node]) -> None:
    pairs = [(n.inputs[0].name, n.outputs[0].dtype) for n in made]
    assert len(pairs) == len(set(pairs)), "a value is cast twice to one dtype"
    for node in made:
        source, result = node.inputs[0], node.outputs[0]
        assert source.dtype != result.dtype
        assert result.uses() or result.is_graph_output()
        producer = source.producer()
        assert producer is None or producer not in made, "a Cast of a Cast"
        assert not source.is_initializer()


def close(model: ir.Model, other: ir.Model, feed: Feed, tolerance: float = 4e-3) -> None:
    for name, expected in run(model, feed).items():
        found = run(other, feed)[name]
        assert found.dtype == expected.dtype
        scale = np.abs(expected).max() + 1e-9
        np.testing.assert_allclose(found / scale, expected / scale, atol=tolerance)


def dtype(model: ir.Model, value: str) -> ir.DataType | None:
    return ir.convenience.create_value_mapping(model.graph)[value].dtype


def made_casts(model: ir.Model) -> list[str | None]:
    return [n.outputs[0].name for n in model.graph if str(n.name).startswith("cast_")]


X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def test_one_cast_at_each_border_and_names_stay() -> None:
    before, after, log = cast("""g (float[n, 4] x) => (float[n, 4] y)
        <float[4, 4] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
        8.0}, float[4] b = {0.1, 0.2, 0.3, 0.4}> {
            [mm] m = MatMul(x, w)
            [add] a = Add(m, b)
            [act] y = Relu(a)
        }""")
    assert [n.name for n in after.graph] == ["cast_x.fp16", "mm", "add", "act", "cast_y"]
    assert log.aliases == {"x.fp16": "x", "y.fp16": "y"}
    assert {dtype(after, v) for v in ("w", "b", "m", "a")} == {HALF}
    assert (log.casts, log.half_nodes, log.islands) == (2, 3, {})
    close(before, after, {"x": X})


def test_integer_inputs_and_shapes_are_untouched() -> None:
    before, after, _ = cast("""g (int64[n] ids, float[n, 4] x) => (float[n, 4] y, int64[2] s)
        <float[3, 4] table = {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0}> {
            e = Gather(table, ids)
            y = Add(e, x)
            s = Shape(e)
        }""")
    assert dtype(after, "ids") == ir.DataType.INT64
    assert dtype(after, "table") == HALF
    close(before, after, {"x": X, "ids": np.array([0, 2, 1])})


RMS = """g (float[n, 4] x) => (float[n, 4] y)
    <float two = {2.0}, float eps = {0.000001}, int64[1] last = {-1},
     float[4] g1 = {1.0, 2.0, 3.0, 4.0}> {
        h = Relu(x)
        square = Pow(h, two)
        mean = ReduceMean(square, last)
        shifted = Add(mean, eps)
        root = Sqrt(shifted)
        inverse = Reciprocal(root)
        normed = Mul(h, inverse)
        scaled = Mul(g1, normed)
        y = Softmax(scaled)
    }"""


def test_a_decomposed_norm_is_one_island_with_one_cast_in_and_one_out() -> None:
    before, after, log = cast(RMS)
    assert {dtype(after, v) for v in ("square", "mean", "shifted", "root", "scaled")} == {FLOAT}
    assert made_casts(after) == ["x.fp16", "h.fp32", "scaled.fp16", "y"]
    assert (dtype(after, "eps"), dtype(after, "g1")) == (FLOAT, FLOAT)
    assert len(log.islands) == 7
    close(before, after, {"x": X * 300})  # squares reach 1e6: beyond half


def test_values_that_half_cannot_square_survive_the_norm() -> None:
    _, after, _ = cast(RMS)
    found = run(after, {"x": np.full((1, 4), 3e4, np.float32)})["y"]
    assert np.isfinite(found).all()


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceL2"])
def test_a_long_sum_is_accurate(op: str) -> None:
    before, after, _ = cast(f"""g (float[n, 40000] x) => (float[n, 1] y)
        <int64[1] last = {{-1}}, float k = {{0.001}}> {{ a = {op}(x, last)  y = Mul(a, k) }}""")
    x = np.random.default_rng(1).random((2, 40000)).astype(np.float32) * 8
    close(before, after, {"x": x}, tolerance=1e-3)


def test_layer_normalization_takes_half_and_accumulates_in_float() -> None:
    text = """g (float[n, 4] x) => (float[n, 4] y)
        <float[4] s = {1.0, 2.0, 3.0, 4.0}, float[4] b = {0.0, 0.0, 1.0, 1.0}> {
            h = Relu(x)
            y = LayerNormalization%s(h, s, b)
        }"""
    before, after, log = cast(text % "")
    assert log.islands == {}
    close(before, after, {"x": X})
    _, after, log = cast(text % "<stash_type = 16>")
    assert list(log.islands.values()) == ["it does not accumulate in float32"]
    assert dtype(after, "s") == FLOAT


MASK = """g (float[n, 4] x, float[n, 4] keep) => (float[n, 4] y)
    <float one = {1.0}, float low = {%s}> {
        drop = Sub(one, keep)
        mask = Mul(drop, low)
        scores = Add(x, mask)
        y = Softmax(scores)
    }"""


@pytest.mark.parametrize("low", ["-3.4028234663852886e+38", "-1000000000.0", "-100000.0"])
def test_the_low_end_of_a_mask_leaves_room_for_scores(low: str) -> None:
    before, after, log = cast(MASK % low)
    assert log.clipped == {"low": 1}
    assert after.graph.initializers["low"].const_value.numpy() == np.float16(-32768)
    keep = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]], np.float32)
    close(before, after, {"x": X, "keep": keep})


def test_a_fill_that_is_data_stays_what_it_is() -> None:
    before, after, log = cast("""g (float[n, 4] x, bool[n, 4] keep)
        => (float[n, 4] y, float[n, 4] z) <float far = {100000.0}, float half = {0.5}> {
            distances = Where(keep, x, far)
            y = Mul(distances, half)
            s = Shape(x)
            fill = ConstantOfShape<value = float[1] {1000000.0}>(s)
            z = Mul(x, fill)
        }""")
    assert log.clipped == {}
    keep = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]], bool)
    close(before, after, {"x": X, "keep": keep})


def test_infinity_stays_infinity() -> None:
    text = """g (float[n, 4] x, bool[n, 4] keep) => (float[n, 4] y) <float low = {0.0}> {
        scores = Where(keep, x, low)
        y = Softmax(scores)
    }"""
    model = ir.from_onnx_text(HEAD + text)
    model.graph.initializers["low"].const_value = ir.Tensor(np.float32(-np.inf), name="low")
    before, after, log = cast(model)
    assert log.clipped == {}
    keep = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]], bool)
    close(before, after, {"x": X, "keep": keep})


def test_a_large_factor_stays_in_float_and_is_reported() -> None:
    before, after, log = cast("""g (float[n, 4] x) => (float[n, 4] y)
        <float big = {1000000.0}, float small = {0.0001}> {
            a = Relu(x)
            [up] b = Mul(a, big)
            [down] c = Mul(b, small)
            y = Tanh(c)
        }""")
    assert log.islands["up"] == "constant big reaches 1e+06, beyond float16"
    assert "down" in log.islands  # its input would overflow
    close(before, after, {"x": X})


def test_a_tiny_constant_does_not_become_zero() -> None:
    before, after, log = cast("""g (float[n, 4] x) => (float[n, 4] y)
        <float eps = {1e-12}> {
            a = Relu(x)
            [guard] b = Max(a, eps)
            y = Div(a, b)
        }""")
    assert log.islands["guard"] == "constant eps is 1e-12, too small for float16"
    close(before, after, {"x": np.abs(X)})
    assert np.isfinite(run(after, {"x": -np.abs(X)})["y"]).all()


def test_angles_of_late_positions_are_exact() -> None:
    """A rotary embedding: half holds integers only up to 2048."""
    before, after, log = cast("""g (int64[1, n] position, float[1, 2, n] x) => (float[1, 2, n] y)
        <float[1, 2, 1] frequency = {1.0, 0.1}, int64[1] one = {1}> {
            p = Cast<to = 1>(position)
            row = Unsqueeze(p, one)
            angle = MatMul(frequency, row)
            c = Cos(angle)
            y = Mul(x, c)
        }""")
    assert dtype(after, "angle") == FLOAT
    assert dtype(after, "c.fp16") == HALF  # the product with x runs in half
    assert sorted(set(log.islands.values())) == [
        "Cos of an angle, whose error is absolute", "it computes an angle",
    ]  # fmt: skip
    position = np.arange(4000, 4010)[None]
    close(before, after, {"position": position, "x": np.ones((1, 2, 10), np.float32)})


def test_a_constant_read_by_both_kinds_is_stored_in_both_dtypes() -> None:
    before, after, log = cast("""g (float[n, 4] x) => (float[n, 4] y)
        <float[4] k = {1.0, 2.0, 3.0, 4.0}> {
            a = Mul(x, k)
            e = Exp(a)
            f = Mul(e, k)
            t = Tanh(f)
            y = Add(t, k)
        }""")
    assert (dtype(after, "k"), dtype(after, "k.fp16")) == (FLOAT, HALF)
    assert log.aliases["k.fp16"] == "k"
    close(before, after, {"x": X})


def test_an_input_dtype_that_the_operator_fixes_is_kept() -> None:
    before, after, _ = cast("""g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y)
        <float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
            a = Relu(x)
            y = Resize<mode = "nearest">(a, , scales)
        }""")
    assert (dtype(after, "scales"), dtype(after, "a")) == (FLOAT, HALF)
    close(before, after, {"x": np.ones((1, 1, 2, 2), np.float32)})


def test_attributes_that_set_a_dtype_follow() -> None:
    before, after, _ = cast("""g (float[n, 4] x, bool[n, 4] m) => (float[n, 4] y) {
            s = Shape(x)
            fill = ConstantOfShape<value = float[1] {-1000000.0}>(s)
            f = Cast<to = 1>(m)
            a = Mul(f, x)
            y = Where(m, a, fill)
        }""")
    assert (dtype(after, "fill"), dtype(after, "f")) == (HALF, HALF)
    found = run(after, {"x": X, "m": np.zeros((3, 4), bool)})["y"]
    np.testing.assert_array_equal(found, np.float32(-32768))
    del before


def test_float64_goes_too() -> None:
    before, after, log = cast("""g (double[n, 4] x) => (double[n, 4] y)
        <double[4] k = {1.0, 2.0, 3.0, 4.0}> {
            a = Mul(x, k)
            e = Exp(a)
            d = Cast<to = 1>(e)
            r = Relu(d)
            y = Cast<to = 11>(r)
        }""")
    types = {v.dtype for n in after.graph for v in n.outputs if v.name != "y"}
    assert types == {HALF, FLOAT}
    close(before, after, {"x": X.astype(np.float64)})
    assert log.islands


def test_a_half_model_is_left_as_it_is() -> None:
    text = (
        "g (float16[n, 4] x) => (float16[n, 4] y) <float k = {0.0}> { a = Mul(x, k)  y = Exp(a) }"
    )
    model = ir.from_onnx_text(HEAD + text)
    k = model.graph.initializers["k"]
    k.const_value, k.type = ir.Tensor(np.float16(1.5), name="k"), ir.TensorType(HALF)
    before, after, log = cast(model)
    assert (log.casts, log.islands, log.aliases) == (0, {}, {})
    assert [n.op_type for n in after.graph] == ["Mul", "Exp"]
    close(before, after, {"x": X.astype(np.float16)})


def test_casts_that_the_graph_had_and_no_longer_needs_go() -> None:
    before, after, log = cast("""g (float[n, 4] x) => (float[n, 4] y) {
            a = Relu(x)
            h = Cast<to = 10>(a)
            w = Cast<to = 1>(h)
            y = Tanh(w)
        }""")
    assert [n.op_type for n in after.graph] == ["Cast", "Relu", "Tanh", "Cast"]
    assert log.casts == 2
    close(before, after, {"x": X})


def test_subgraphs_stay_in_float() -> None:
    before, after, log = cast("""g (float[n, 4] x, bool c) => (float[n, 4] y)
        <float[4] k = {1.0, 2.0, 3.0, 4.0}> {
            a = Mul(x, k)
            [branch] b = If(c) <
                then_branch = t () => (float[n, 4] u) { u = Mul(a, k) },
                else_branch = e () => (float[n, 4] v) { v = Neg(a) }
            >
            y = Tanh(b)
        }""")
    assert log.islands == {"branch": "it holds a subgraph"}
    for choice in (True, False):
        close(before, after, {"x": X, "c": np.array(choice)})


def test_what_a_foreign_operator_makes_is_not_mixed_with_half() -> None:
    """Nothing says that its result is half, or float: all that reads it stays as it was."""
    model = graph.upgrade(
        ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[n, 4] x) => (float[n, 4] y) <float[4, 4] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
        8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}> {
            [first] a = MatMul(x, w)
            [odd] b = com.microsoft.Gelu(a)
            [act] c = Relu(b)
            [second] y = MatMul(c, w)
        }""")
    )
    after = model.clone()
    log = to_half(after)
    assert dtype(after, "a") == HALF
    assert set(log.islands) == {"odd", "act", "second"}
    close(model, after, {"x": X})


def test_sequences_stay_in_float() -> None:
    before, after, log = cast("""g (float[n, 4] x) => (float[?, 4] y) {
        a = Relu(x)
        [pack] s = SequenceConstruct(a, x)
        [join] c = ConcatFromSequence<axis = 0>(s)
        y = Tanh(c)
    }""")
    assert log.islands == dict.fromkeys(("pack", "join"), "it works on sequences")
    close(before, after, {"x": X})


def test_an_output_that_is_also_read_inside() -> None:
    before, after, _ = cast("""g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {
        y = Relu(x)
        a = Exp(y)
        z = Mul(a, y)
    }""")
    close(before, after, {"x": X})


def test_names_in_use_are_avoided() -> None:
    model = ir.from_onnx_text(
        HEAD + "g (float[n, 4] x) => (float[n, 4] y) { [cast_y] a = Relu(x)  y = Tanh(a) }"
    )
    model.graph[0].outputs[0].name = "x.fp16"
    before, after, log = cast(model)
    assert log.aliases == {"x.fp16_1": "x", "y.fp16": "y"}
    assert len({n.name for n in after.graph}) == 4
    close(before, after, {"x": X})


UNARY = ("Relu", "Tanh", "Sigmoid", "Exp", "Abs", "Neg", "Softmax", "Erf", "Sqrt", "Softplus")
BINARY = ("Add", "Sub", "Mul", "Max", "Div")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_graph_stays_valid_and_close(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Random graphs of unary, binary, reducing and weighted operators with shared values."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    nodes, values, constants = [], ["x"], {"last": np.array([-1])}
    for index in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(["unary", "binary", "constant", "mean", "matmul", "norm"]))
        pick = st.sampled_from(values)
        source, out = data.draw(pick), f"v{index}"
        op, inputs, attributes = "Identity", [source], {}
        if kind == "unary":
            op = data.draw(st.sampled_from(UNARY))
            if op == "Sqrt":  # of something positive
                nodes.append(helper.make_node("Sigmoid", [source], [f"p{index}"], f"p{index}"))
                inputs = [f"p{index}"]
        elif kind in ("binary", "constant"):
            op = data.draw(st.sampled_from(BINARY))
            constants[f"c{index}"] = (rng.random((1, 4)) + 0.5).astype(np.float32)
            divides = kind == "constant" or op == "Div"
            inputs = [source, f"c{index}" if divides else data.draw(pick)]
        elif kind == "mean":
            op, inputs = "ReduceMean", [source, "last"]
        elif kind == "matmul":
            constants[f"c{index}"] = rng.standard_normal((4, 4)).astype(np.float32) / 4
            op, inputs = "MatMul", [source, f"c{index}"]
        elif kind == "norm":
            constants[f"c{index}"] = np.ones(4, np.float32)
            op, inputs = "LayerNormalization", [source, f"c{index}"]
        nodes.append(helper.make_node(op, inputs, [out], f"n{index}", **attributes))
        if kind == "mean":  # back to four columns
            constants[f"e{index}"] = np.array([1, 4])
            nodes.append(helper.make_node("Expand", [out, f"e{index}"], [f"{out}e"], f"e_{out}"))
            out = f"{out}e"
        nodes.append(helper.make_node("Clip", [out, "lo", "hi"], [f"{out}c"], f"clip_{out}"))
        values.append(f"{out}c")
    constants |= {"lo": np.float32([-8]).reshape(()), "hi": np.float32([8]).reshape(())}
    outputs = sorted({values[-1], data.draw(st.sampled_from(values[1:]))})
    proto = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    exported = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 21)])
    exported.ir_version = 10
    before, after, _ = cast(ir.from_proto(exported))
    path = tmp_path_factory.mktemp("cast") / "m.onnx"
    graph.save(after, path)
    graph.check(path)
    feed = {"x": X}
    for name, expected in run(before, feed).items():
        found = run(after, feed)[name]
        assert np.isfinite(found).all() or not np.isfinite(expected).all()
        if not any(n.op_type in ("LayerNormalization", "Div", "Exp") for n in before.graph):
            np.testing.assert_allclose(found, expected, atol=0.05)


# what torch really exports, and what the compiler makes of it


def attention_model() -> ir.Model:
    """Embedding, decomposed RMS norm, masked attention, LayerNorm, GELU; two layers of products."""
    torch = pytest.importorskip("torch")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    nn = torch.nn
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self, width: int = 64, heads: int = 4) -> None:
            super().__init__()
            self.table = nn.Embedding(50, width)
            self.gain = nn.Parameter(torch.rand(width) + 0.5)
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
            self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
            self.down = nn.Linear(2 * width, 10)
            self.heads = heads

        def forward(self, ids: Any, keep: Any) -> Any:
            x = self.table(ids)
            b, n, d = x.shape
            h = self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
            q, k, v = (
                f(h).reshape(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
            mask = (1 - keep[:, None, None, :].to(x.dtype)) * torch.finfo(torch.float32).min
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + y.transpose(1, 2).reshape(b, n, d)
            return self.down(nn.functional.gelu(self.up(self.norm(x))))

    axes = {0: "batch", 1: "sequence"}
    program = torch.onnx.export(
        Model().eval(), (torch.ones(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.long)),
        dynamo=True, opset_version=21, dynamic_shapes=(axes, axes), verbose=False,
    )  # fmt: skip
    return graph.upgrade(ir.from_proto(program.model_proto))


@pytest.fixture(scope="module")
def attention() -> ir.Model:
    return attention_model()


@pytest.mark.slow
def test_an_exported_attention_block(attention: ir.Model, tmp_path: Path) -> None:
    before, after, log = cast(attention.clone())
    graph.save(after, tmp_path / "m.onnx")
    graph.check(tmp_path / "m.onnx")
    weighted = [n for n in after.graph if graph.constant_weight(n) is not None]
    assert len(weighted) == 5
    assert {v.dtype for n in weighted for v in (*n.inputs, *n.outputs)} == {HALF}
    assert {n.inputs[0].dtype for n in after.graph if n.op_type == "Softmax"} == {HALF}
    assert len(made_casts(after)) == 3  # into the RMS norm, out of it, and the logits
    assert list(log.clipped.values()) == [1]
    keep = np.ones((2, 6), np.int64)
    keep[0, 4:] = 0
    ids = np.random.default_rng(0).integers(0, 50, (2, 6))
    close(before, after, {"ids": ids, "keep": keep})


def test_tensorrt_rtx_builds_it_strongly_typed_and_fuses_attention(
    attention: ir.Model, tmp_path: Path
) -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    _, after, _ = cast(attention.clone())
    graph.save(after, tmp_path / "m.onnx")
    messages: list[str] = []

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            messages.append(message)

    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(tmp_path / "m.onnx")), parser.get_error(0).desc()
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    assert config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    for name in ("ids", "keep"):
        profile.set_shape(name, (1, 4), (4, 8), (8, 16))
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is not None
    layers = next(message for message in messages if message.startswith("Layers:"))
    fused = re.findall(r"^\s*Name: (\S+), LayerType", layers, re.MULTILINE)
    assert sum("_gemm_mha" in name for name in fused) == 1
    products = [n for n in layers.splitlines() if "LayerType: gemm" in n]
    operands = [line.partition("Constants:")[0] for line in products]
    assert operands
    assert all("Datatype: Half" in o and "Datatype: Float" not in o for o in operands)
