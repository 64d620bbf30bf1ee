"""Nodes that stay in FP32 by measured magnitudes: those that half precision damages, and no
others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.craft.precision_cast import before_recurrences, magnitude
from optkit.craft.precision_cast.cast import HALVES, CastLog, to_half
from optkit.craft.precision_cast.kept_in_fp32 import dividends
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange, TensorInfo, narrowed
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.ground.devices import target
from optkit.ground.runtimes import SessionOptions
from optkit.road.steps import perform
from tests.networks import network

HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
Feed = dict[str, np.ndarray]
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


class Bench:
    """Casts a model by what its values are on `feed`, and runs models, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def session(self, model: ir.Model) -> Any:
        path = self.folder / "model.onnx"
        graph.save(model, path)
        return OnnxRuntime().session(path, SessionOptions(level="none", threads=1))

    def measure(self, feed: Feed) -> Callable[[ir.Model], magnitude.Magnitudes]:
        def measured(model: ir.Model) -> magnitude.Magnitudes:
            measuring, outputs = magnitude.magnitude_graph(model, dividends(model))
            with self.session(measuring) as session:
                return magnitude.measure(session, [feed], outputs, samples=1, what="samples")

        return measured

    def cast(
        self, source: str | ir.Model, feed: Feed, carrier: str = "fp16"
    ) -> tuple[ir.Model, ir.Model, CastLog]:
        """(FP32 model, its cast, log); the cast is valid."""
        before = ir.from_onnx_text(HEAD + source) if isinstance(source, str) else source
        before = graph.upgrade(before, HALVES[carrier].opset)
        after = before.clone()
        log = to_half(after, carrier, self.measure(feed))
        graph.save(after, self.folder / "cast.onnx")
        graph.check(self.folder / "cast.onnx")
        return before, after, log

    def agree(self, before: ir.Model, after: ir.Model, feed: Feed, tolerance: float) -> None:
        """Every output, to a share of its largest value."""
        with self.session(before) as session:
            expected = session.run(feed)
        with self.session(after) as session:
            found = session.run(narrowed(feed, session.inputs))
        for name, values in expected.items():
            scale = np.abs(values).max(initial=1e-30)
            np.testing.assert_allclose(found[name] / scale, values / scale, atol=tolerance)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def dtype(model: ir.Model, value: str) -> ir.DataType | None:
    return ir.convenience.create_value_mapping(model.graph)[value].dtype


# what is measured


@settings(max_examples=30, deadline=None)
@given(
    numbers=st.lists(
        st.one_of(
            st.floats(width=32, allow_subnormal=False),
            st.sampled_from([0.0, 65504.0, 1e-7, float("inf"), float("nan")]),
        ),
        max_size=6,
    )
)
def test_reaches_are_those_of_the_finite_numbers(
    numbers: list[float], tmp_path_factory: Any
) -> None:
    model = graph.upgrade(
        ir.from_onnx_text(HEAD + "g (float[n] x) => (float[n] y) { a = Neg(x)  y = Sqrt(a) }")
    )
    x = np.array(numbers, np.float32)
    with Bench(tmp_path_factory.mktemp("reach")).session(
        magnitude.magnitude_graph(model, {"a"})[0]
    ) as session:
        found = magnitude.measure(
            session,
            [{"x": x}],
            magnitude.magnitude_graph(model, {"a"})[1],
            samples=1,
            what="samples",
        )
    magnitudes = np.abs(x[np.isfinite(x)])
    largest = float(magnitudes.max(initial=0.0))
    assert found.values["x"] == (largest, np.inf)
    assert found.values["a"] == (largest, magnitudes[magnitudes > 0].min(initial=np.inf))


def test_measuring_stops_at_enough_samples(bench: Bench) -> None:
    model = graph.upgrade(
        ir.from_onnx_text(HEAD + "g (float[n, 1] x) => (float[n, 1] y) { y = Neg(x) }")
    )
    measuring, outputs = magnitude.magnitude_graph(model)
    feeds = ({"x": np.full((4, 1), number, np.float32)} for number in (1, 2, 3, 4))
    with bench.session(measuring) as session:
        found = magnitude.measure(session, feeds, outputs, samples=7, what="test samples")
    assert found.on == "8 test samples"
    assert found.values["y"].largest == 2


# planted trouble


LARGE = """g (float[n, 4] x) => (float[n, 4] y)
    <float[4, 4] w = {50.0, 7.0, 9.0, 3.0, 8.0, 60.0, 2.0, 1.0, 5.0, 5.0, 70.0, 5.0, 1.0, 2.0, 3.0,
     90.0}, float thousand = {1000.0}, float down = {0.0001}> {
        [first] a = MatMul(x, w)
        [scale] b = Mul(a, thousand)
        [flip] c = Neg(b)
        [back] d = Mul(c, down)
        [second] y = MatMul(d, w)
    }"""


def test_activations_of_1e5_stay_in_float_between_products_in_half(bench: Bench) -> None:
    before, after, log = bench.cast(LARGE, {"x": X})
    assert set(log.islands) == {"scale", "flip", "back"}
    assert log.islands["flip"].startswith("c reaches ")
    assert "on 3 samples, float16 ends at 65504" in log.islands["flip"]
    largest = float(log.islands["flip"].split()[2])
    with bench.session(graph.expose(before, ["c"])) as session:
        assert largest == pytest.approx(np.abs(session.run({"x": X})["c"]).max(), rel=1e-2)
    assert {dtype(after, v) for v in ("a", "w", "y.fp16")} == {HALF}
    bench.agree(before, after, {"x": X}, 4e-3)


@pytest.mark.parametrize("lengths", [True, False])
def test_a_recurrence_with_lengths_stays_in_float(bench: Bench, lengths: bool) -> None:
    given = ", , lengths" if lengths else ""
    text = f"""g (float[4,1,4] x, int32[1] lengths, float[1,12,4] w, float[1,12,4] r)
        => (float[4,1,1,4] y) {{ [cell] y, _ = GRU <hidden_size = 4> (x, w, r{given}) }}"""
    ones = np.ones((1, 12, 4), np.float32) / 8
    feed = {"x": ones.reshape(4, 3, 4)[:, :1], "w": ones, "r": ones}
    *_, log = bench.cast(text, {**feed, "lengths": np.array([3], np.int32)})
    assert ("cell" in log.islands) == lengths


def test_a_result_that_is_left_out_has_no_type(bench: Bench) -> None:
    text = """g (float[t,1,4] x, float[1,12,4] w, float[1,12,4] r) => (float[1,1,4] last)
        { [cell] , last = GRU <hidden_size = 4> (x, w, r) }"""
    ones = np.ones((1, 12, 4), np.float32) / 8
    *_, log = bench.cast(text, {"x": ones.reshape(12, 1, 4), "w": ones, "r": ones})
    assert log.islands == {}


def test_what_a_recurrence_in_float_reads_is_computed_in_float(
    bench: Bench, tmp_path: Path
) -> None:
    """TensorRT-RTX 1.7 does not compile a Cast right before a recurrence in FP32. Here the second
    of two recurrences behind a product takes the lengths of the sequences."""
    m, w, r = (", ".join(f"{np.sin(i + k) / 4:.6f}" for i in range(n))
               for k, n in enumerate((16, 48, 48)))  # fmt: skip
    text = f"""g (float[batch,t,4] x, int32[batch] lengths) => (float[1,batch,4] last)
        <float[4,4] m = {{{m}}}, float[1,12,4] w = {{{w}}}, float[1,12,4] r = {{{r}}},
         int64[1] axis = {{1}}> {{
            [product] a = MatMul(x, m)
            [turn] b = Transpose <perm = [1, 0, 2]> (a)
            [first] c = GRU <hidden_size = 4> (b, w, r)
            [flat] d = Squeeze(c, axis)
            [second] , last = GRU <hidden_size = 4> (d, w, r, , lengths)
        }}"""
    x = np.random.default_rng(0).standard_normal((2, 6, 4)).astype(np.float32)
    feed = {"x": x, "lengths": np.array([6, 4], np.int32)}
    before, after, log = bench.cast(text, feed)
    assert {"first", "second", "product"} <= set(log.islands)
    bench.agree(before, after, feed, 1e-3)
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    graph.save(after, tmp_path / "half.onnx")
    inputs = (TensorInfo("x", "float32", ("batch", "t", 4)),
              TensorInfo("lengths", "int32", ("batch",)))  # fmt: skip
    axes = {"batch": AxisRange(1, 2, 8), "t": AxisRange(2, 6, 40)}
    rtx = TensorRTRTX()
    spec = rtx.spec(inputs, target("l4"), PRECISIONS["fp16"], axes)
    assert rtx.compile(tmp_path / "half.onnx", spec, {}, tmp_path, lambda *_: None).bytes > 0


def test_what_moves_one_value_twice_is_followed_once() -> None:
    """Each Concat doubles the ways to the product: 2^60 of them."""
    chain = " ".join(f"v{i + 1} = Concat <axis = 2> (v{i}, v{i})" for i in range(60))
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[t,1,n] x, float[1,12,k] w, '
        "float[1,12,4] r, int32[1] lengths) => (float[1,1,4] last) { [first] v0 = Relu (x) "
        f"{chain} [cell] , last = GRU <hidden_size = 4> (v60, w, r, , lengths) }}"
    )
    first, cell = model.graph[0], model.graph[-1]
    assert before_recurrences.sources(model, {cell}) == {first}


BOUNDS = """g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z)
    <float large = {30000.0}, float low = {-1000000.0}, float high = {1000000.0},
     float down = {0.00001}> {
        [small] a = Clip(x, low, high)
        [scale] b = Mul(a, large)
        [bound] c = Clip(b, low, high)
        [back] y = Mul(c, down)
        [least] d = Max(x, high)
        [most] z = Mul(d, down)
    }"""


def test_bounds_are_brought_into_halfs_range_where_half_computes_and_nowhere_else(
    bench: Bench,
) -> None:
    x = 4 * X
    before, after, log = bench.cast(BOUNDS, {"x": x})
    assert {"scale", "bound", "back", "least", "most"} == set(log.islands)
    bench.agree(before, after, {"x": x}, 4e-3)


def test_the_same_without_samples_overflows(bench: Bench) -> None:
    """So the evidence is what saves it."""
    after = graph.upgrade(ir.from_onnx_text(HEAD + LARGE))
    assert to_half(after).islands == {}
    with bench.session(graph.expose(after, ["b"])) as session:
        assert np.isinf(session.run({"x": X})["b"]).any()


def test_values_near_the_end_are_within_the_margin(bench: Bench) -> None:
    """Other samples may reach further: a quarter of the largest half is the limit."""
    text = """g (float[n, 4] x) => (float[n, 4] y) <float k = {%s}> {
        [up] a = Mul(x, k)
        y = Tanh(a)
    }"""
    ones = np.ones((1, 4), np.float32)
    assert bench.cast(text % "16000.0", {"x": ones})[2].islands == {}
    assert "up" in bench.cast(text % "17000.0", {"x": ones})[2].islands


def test_weights_of_1e_7_stay_in_float(bench: Bench) -> None:
    weights = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32) * 1e-7
    model = ir.from_onnx_text(
        HEAD
        + """g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) <float large = {10000000.0}> {
            [tiny] a = MatMul(x, w)
            [up] b = Mul(a, large)
            y = Tanh(b)
        }"""
    )
    w = next(value for value in model.graph.inputs if value.name == "w")
    model.graph.inputs.remove(w)
    w.const_value = ir.Tensor(weights, name="w")
    model.graph.register_initializer(w)
    before, after, log = bench.cast(model, {"x": X})
    assert set(log.islands) == {"tiny", "up"}
    assert "too small for float16" in log.islands["tiny"]
    bench.agree(before, after, {"x": X}, 4e-3)


def test_a_tiny_branch_that_is_added_to_a_larger_one_is_no_island(bench: Bench) -> None:
    """Layer scale: what half drops of the branch, the sum would drop anyway."""
    before, after, log = bench.cast(
        """g (float[n, 4] x) => (float[n, 4] y) <float[4] gamma = {1e-6, 2e-6, 1e-6, 2e-6}> {
            a = Relu(x)
            b = Mul(a, gamma)
            t = Identity(b)
            y = Add(x, t)
        }""",
        {"x": X},
    )
    assert log.islands == {}
    bench.agree(before, after, {"x": X}, 1e-3)


@pytest.mark.parametrize("low", ["-3.4028234663852886e+38", "-1000000000.0"])
def test_a_stored_causal_mask_needs_no_island(low: str, bench: Bench) -> None:
    """GPT-2's way: a table of zeros and the lowest float, sliced, added to the scores."""
    before, after, log = bench.cast(
        f"""g (float[2, 2] x, int64[1] n) => (float[2, 2] y)
        <float[2, 4] table = {{0.0, {low}, {low}, {low}, 0.0, 0.0, {low}, {low}}},
         int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
            mask = Slice(table, zero, n, one)
            scores = Add(x, mask)
            y = Softmax(scores)
        }}""",
        feed := {"x": X[:2, :2].copy(), "n": np.array([2])},
    )
    assert log.islands == {}
    assert log.clipped == {"table": 5}
    bench.agree(before, after, feed, 1e-3)


def test_a_constant_that_is_both_a_fill_and_data_is_stored_twice(bench: Bench) -> None:
    feed = {"x": X, "keep": X > 0}
    before, after, log = bench.cast(
        """g (float[n, 4] x, bool[n, 4] keep) => (float[n, 4] y, float[n, 4] z)
        <float low = {-1e9}, float down = {1e-9}> {
            filled = Where(keep, x, low)
            y = Softmax(filled)
            [data] a = Mul(x, down)
            [more] b = Div(a, low)
            [least] c = Mul(b, low)
            z = Tanh(c)
        }""",
        feed,
    )
    assert "constant low reaches 1e+09, beyond float16" in log.islands["more"]
    assert after.graph.initializers["low"].const_value.numpy() == np.float32(-1e9)
    assert {"data", "more", "least"} <= set(log.islands)
    assert log.clipped == {"low": 1}
    bench.agree(before, after, feed, 4e-3)


NORM = """g (float[n, 8] x) => (float[n, 8] y)
    <float two = {2.0}, float eps = {%s}, int64[1] last = {-1}> {
        h = Relu(x)
        [square] s = Pow(h, two)
        [mean] m = ReduceMean(s, last)
        [guard] v = Add(m, eps)
        [root] r = Sqrt(v)
        [divide] d = Div(h, r)
        y = Sigmoid(d)
    }"""


def test_squares_make_an_island_only_where_they_overflow(bench: Bench) -> None:
    for size, overflows in ((1.0, False), (300.0, True)):
        feed = {"x": np.linspace(1, 2, 16, dtype=np.float32).reshape(2, 8) * size}
        before, after, log = bench.cast(NORM % "0.001", feed)
        assert ("square" in log.islands) == overflows
        assert bool(log.islands) == overflows
        bench.agree(before, after, feed, 2e-3)


def test_an_epsilon_of_1e_12_guards_what_is_divided_by(bench: Bench) -> None:
    feed = {"x": np.stack([np.full(8, 1e-3), np.ones(8)]).astype(np.float32)}
    before, after, log = bench.cast(NORM % "1e-12", feed)
    assert {"mean", "guard", "root"} <= set(log.islands)
    assert "goes down to 1e-06" in log.islands["mean"]
    bench.agree(before, after, feed, 2e-3)
    with bench.session(after) as session:
        assert np.isfinite(session.run({"x": np.zeros((1, 8), np.float32) + 1e-5})["y"]).all()


@pytest.mark.parametrize(("width", "kept"), [(16, False), (65, True)])
@pytest.mark.parametrize("carrier", ["fp16", "bf16"])
def test_long_sums_stay_in_float_and_short_ones_need_not(
    width: int, kept: bool, carrier: str, bench: Bench
) -> None:
    feed = {"x": np.ones((1, width), np.float32)}
    _, _, log = bench.cast(
        f"""g (float[n, {width}] x) => (float[n, 1] y) <int64[1] last = {{-1}}> {{
            a = Relu(x)
            [sum] b = ReduceSum(a, last)
            y = Tanh(b)
        }}""",
        feed,
        carrier,
    )
    assert ("sum" in log.islands) == kept


def test_a_sum_over_a_dynamic_axis_may_be_any_length(bench: Bench) -> None:
    _, _, log = bench.cast(
        """g (float[1, n] x) => (float[1, 1] y) <int64[1] last = {-1}> {
            a = Relu(x)
            [sum] b = ReduceMean(a, last)
            y = Tanh(b)
        }""",
        {"x": np.ones((1, 3), np.float32)},
    )
    assert log.islands["sum"].startswith("ReduceMean of an open number of numbers")


@pytest.mark.parametrize(
    ("carrier", "count", "kept"),
    [("fp16", 500, False), ("fp16", 600, True), ("bf16", 60, False), ("bf16", 70, True)],
)
def test_counts_stay_in_float_where_half_confuses_them(
    carrier: str, count: int, kept: bool, bench: Bench
) -> None:
    _, _, log = bench.cast(
        """g (int64[n] i, float[n] x) => (float[n] y) {
            [count] f = Cast<to = 1>(i)
            [use] a = Mul(f, x)
            y = Tanh(a)
        }""",
        {"i": np.array([1, count]), "x": np.ones(2, np.float32)},
        carrier,
    )
    assert ({"count", "use"} <= set(log.islands)) == kept
    assert bool(log.islands) == kept


# caches


CACHED = """g (float[b, 1, n, 4] x, float[b, 1, p, 4] past_key_values.0.key,
       float[b, 1, p, 4] past_key_values.0.value)
    => (float[b, 1, n, t] y, float[b, 1, t, 4] present.0.key, float[b, 1, t, 4] present.0.value)
    <float[4, 4] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
     8.0}, float k = {%s}> {
        new = MatMul(x, w)
        value = Mul(new, k)
        present.0.key = Concat<axis = 2>(past_key_values.0.key, new)
        present.0.value = Concat<axis = 2>(past_key_values.0.value, value)
        turned = Transpose<perm = [0, 1, 3, 2]>(present.0.key)
        scores = MatMul(x, turned)
        y = Softmax(scores)
    }"""


def cached_feed(past: int) -> Feed:
    rng = np.random.default_rng(0)
    names = ("past_key_values.0.key", "past_key_values.0.value")
    caches = {n: rng.standard_normal((2, 1, past, 4)).astype(np.float32) for n in names}
    return {"x": rng.standard_normal((2, 1, 3, 4)).astype(np.float32), **caches}


@pytest.mark.parametrize("past", [0, 5])
def test_caches_are_half_and_no_cast_touches_them(past: int, bench: Bench) -> None:
    feed = cached_feed(past)
    before, after, log = bench.cast(cached("0.5"), feed)
    types = {info.name: info.dtype for info in (*graph.inputs(after), *graph.outputs(after))}
    assert types == {
        "x": "float32", "y": "float32",
        **{f"{side}.0.{what}": "float16" for side in ("past_key_values", "present")
           for what in ("key", "value")},
    }  # fmt: skip
    assert log.caches == sorted(name for name, kind in types.items() if kind == "float16")
    touched = {str(v.name) for n in after.graph if n.op_type == "Cast"
               for v in (*n.inputs, *n.outputs)}  # fmt: skip
    assert not touched & set(log.caches)
    bench.agree(before, after, feed, 4e-3)


def test_a_cache_beyond_half_stays_as_it_was_on_both_sides(bench: Bench) -> None:
    feed = cached_feed(5)
    before, after, log = bench.cast(cached("100000.0"), feed)
    assert log.caches == ["past_key_values.0.key", "present.0.key"]
    assert graph.inputs(after)[2].dtype == graph.outputs(after)[2].dtype == "float32"
    bench.agree(before, after, feed, 4e-3)


def cached(k: str) -> ir.Model:
    """The text with its dots, which the parser does not take in names."""
    text = (HEAD + CACHED % k).replace("past_key_values.0.", "pastO").replace("present.0.", "presO")
    model = ir.from_onnx_text(text)
    for value in ir.convenience.create_value_mapping(model.graph).values():
        name = str(value.name)
        value.name = name.replace("pastO", "past_key_values.0.").replace("presO", "present.0.")
    return model


# the step


def test_the_step_measures_on_samples_and_says_on_which(tmp_path: Path) -> None:
    for name in ("graph", "samples", "out"):
        (tmp_path / name).mkdir()
    model = graph.upgrade(ir.from_onnx_text(HEAD + LARGE))
    graph.save(model, tmp_path / "graph" / "model.onnx")
    feeds = ({"x": X} for _ in range(20))
    spool_writer.write(
        feeds, tmp_path / "samples", [TensorInfo("x", "float32", ("n", 4))],
        limit_samples=None, memory_bytes=1 << 20, progress=lambda what, done: None,
    )  # fmt: skip
    found = perform(
        "cast",
        {"graph": tmp_path / "graph", "samples": tmp_path / "samples"},
        {"carrier": "fp16", "batch": 8, "what": "calibration samples"},
        tmp_path / "out",
        lambda what, done: None,
    )
    assert found["log"]["measured"] == "32 calibration samples"
    assert found["log"]["islands"].keys() == {"scale", "flip", "back"}


def test_eight_bits_land_on_an_island(workshop: Any, bench: Bench) -> None:
    """A product that stays FP32 in the carrier is quantized with FP32 scales around it."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 8] x, float[8, 8] w_a, float[8, 8] w_b) => (float[N, 8] y) {
        h = Relu(x)
        [first] a = MatMul(h, w_a)
        [last] y = MatMul(a, w_b)
    }"""
    large = np.random.default_rng(3).random((8, 8)) * 3e4
    model = network(text, w_a=large)
    feed = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}
    _, carrier, log = bench.cast(model, feed)
    assert set(log.islands) == {"first", "last"}
    quantized, assignment, _ = workshop.quantize(model, "gpu", carrier=carrier)
    assert assignment.nodes["first"].name == "int8"
    expected, found = workshop.run(model, feed)["y"], workshop.run(quantized, feed)["y"]
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


# any graph


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_chain_over_any_range_agrees(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Factors between 1e-9 and 1e9, sums, products, roots and quotients of positive numbers: no
    cancellation, so that half's rounding is all that may differ."""
    nodes, constants, value = [], {"last": np.array([-1])}, "x"
    for index in range(data.draw(st.integers(1, 10))):
        kind = data.draw(st.sampled_from(["scale", "add", "matmul", "Sqrt", "Reciprocal", "Relu",
                                          "mean", "Div"]))  # fmt: skip
        out, c = f"v{index}", f"c{index}"
        factor = 10.0 ** data.draw(st.integers(-9, 9))
        inputs, op = [value], kind
        if kind in ("scale", "add"):
            op = "Mul" if kind == "scale" else "Add"
            constants[c], inputs = np.float32([factor]).reshape(()), [value, c]
        elif kind == "matmul":
            op, inputs = "MatMul", [value, c]
            constants[c] = (np.abs(np.random.default_rng(index).random((4, 4))) + 0.1).astype(
                np.float32
            )
        elif kind == "mean":
            nodes.append(
                helper.make_node("ReduceMean", [value, "last"], [f"m{index}"], f"m{index}")
            )
            op, inputs = "Add", [value, f"m{index}"]
        elif kind == "Div":
            constants[c], inputs = np.float32([factor]).reshape(()), [c, value]
        nodes.append(helper.make_node(op, inputs, [out], f"n{index}"))
        value = out
    proto = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    exported = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 21)])
    exported.ir_version = 10
    bench, feed = Bench(tmp_path_factory.mktemp("any")), {"x": np.abs(X) + 0.5}
    model = graph.upgrade(ir.from_proto(exported))
    with bench.session(graph.expose(model, [f"v{i}" for i in range(index + 1)])) as session:
        values = session.run(feed).values()
    if not all(np.isfinite(v).all() and (np.abs(v) > 1e-37).all() for v in values):
        return  # FP32 itself ends here
    before, after, _ = bench.cast(model, feed)
    bench.agree(before, after, feed, 0.02)
