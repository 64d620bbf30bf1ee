"""BF16: the cast keeps FP32's range, and its simulation rounds what the compiled graph rounds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.precision_cast.cast import HALVES, to_half
from optkit.craft.precision_cast.simulation import simulate
from optkit.facts.errors import InputRefused
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions
from tests.networks import NETWORKS, feed, network, sqnr

HEADER = '<ir_version: 10, opset_import: ["" : 22]>\n'
BF16 = ir.DataType.BFLOAT16


def cast(model: ir.Model) -> tuple[ir.Model, Any]:
    given = graph.upgrade(model.clone(), 22)
    return given, to_half(given, "bf16")


def bf16(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float32)


def test_each_result_is_rounded_once_and_a_bias_joins_its_product(workshop: Any) -> None:
    text = """g (float[N,32] x, float[32,16] w, float[16] b) => (float[N,16] y, float[N,1] mean) {
        [fc] m = MatMul (x, w)
        [bias] a = Add (m, b)
        [relu] r = Relu (a)
        [square] y = Mul (r, r)
        [axis] one = Constant <value_ints=[1]> ()
        [sum] mean = ReduceMean (r, one)
    }"""
    model = network(HEADER + text)
    half, log = cast(model)
    assert list(log.islands) == ["sum"]
    simulate(half)
    assert {v.dtype for v in half.graph.initializers.values()} <= {
        ir.DataType.FLOAT, ir.DataType.INT64,
    }  # fmt: skip
    x = np.random.default_rng(0).standard_normal((7, 32)).astype(np.float32)
    found = workshop.run(half, {"x": x})

    w, b = (bf16(graph.array(model.graph.initializers[name])) for name in ("w", "b"))
    r = np.maximum(bf16(bf16(x) @ w + b), 0)
    # sums in another order may round to a neighbour
    np.testing.assert_allclose(found["y"], bf16(r * r), rtol=2.0**-6, atol=1e-6)
    assert (found["y"] == bf16(r * r)).mean() > 0.97
    np.testing.assert_allclose(found["mean"], r.mean(1, keepdims=True), rtol=2.0**-7)
    assert (found["y"] == bf16(found["y"])).all()


@pytest.mark.parametrize("carrier", ["fp16", "bf16"])
@pytest.mark.parametrize("net", ["residual", "attention"])
def test_no_optimization_removes_the_rounding(net: str, carrier: Any, workshop: Any) -> None:
    """Nor does the optimization of a session, which may cancel pairs of casts."""
    model = network(NETWORKS[net])
    half = graph.upgrade(model.clone(), 22)
    log = to_half(half, carrier)
    weighted = [node for node in half.graph if graph.constant_weight(node) is not None]
    assert {v.dtype for node in weighted for v in node.outputs} == {HALVES[carrier].dtype}
    assert log.half_nodes > 10
    given, path = feed(model), workshop.folder / "simulated.onnx"
    exact = workshop.run(model, given)["y"]
    simulate(half)
    found = {"none": workshop.run(half, given)["y"]}
    graph.save(half, path)
    for level in ("basic", "all"):
        with OnnxRuntime().session(path, SessionOptions(level=level, threads=1)) as session:  # type: ignore[arg-type]
            found[level] = session.run(given)["y"]
    levels = [sqnr(exact, array) for array in found.values()]
    assert max(levels) - min(levels) < 1
    # one rounding to 8 bits of mantissa is 54 dB, to 11 bits 72 dB
    low, high = (40, 60) if carrier == "bf16" else (58, 78)
    assert low < min(levels) and max(levels) < high


@pytest.mark.parametrize("carrier", ["fp16", "bf16"])
@pytest.mark.parametrize("net", NETWORKS)
def test_a_session_of_a_simulation_keeps_every_rounding(
    net: str, carrier: Any, workshop: Any
) -> None:
    """In the graph that ONNX Runtime has optimized, as many values are rounded as were written."""
    half = graph.upgrade(network(NETWORKS[net]), 22)
    to_half(half, carrier)
    simulate(half)
    written, optimized = (workshop.folder / name for name in ("written.onnx", "optimized.onnx"))
    graph.save(half, written)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimized)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(written), options, providers=["CPUExecutionProvider"])
    pairs = [_pairs(graph.load(path), HALVES[carrier].dtype) for path in (written, optimized)]
    assert pairs[0] > 5 and pairs[1] == pairs[0]


def _pairs(model: ir.Model, dtype: ir.DataType) -> int:
    """Pairs of casts to half precision and back."""
    return sum(
        node.op_type == "Cast"
        and node.outputs[0].dtype == dtype
        and any(reader.op_type == "Cast" for reader, _ in node.outputs[0].uses())
        for node in model.graph
    )


def test_its_range_is_that_of_fp32(workshop: Any) -> None:
    text = """g (float[N,4] x) => (float[N,4] y) {
        [big] c = Constant <value_float=1e30> ()
        [small] d = Constant <value_float=1e-30> ()
        [mask] m = Constant <value_float=-3.4028235e38> ()
        [scaled] s = Mul (x, c)
        [back] t = Mul (s, d)
        [masked] y = Max (t, m)
    }"""
    model = network(HEADER + text)
    half, log = cast(model)
    assert not log.islands and list(log.clipped.values()) == [1]
    simulate(half)
    x = np.float32([[1, -2, 3, 0]])
    np.testing.assert_allclose(workshop.run(half, {"x": x})["y"], x, rtol=2.0**-6)


def test_counted_positions_stay_exact(workshop: Any) -> None:
    """BF16 holds integers up to 256 only."""
    text = """g (int64[N] i, float[N] x) => (float[N] y) {
        [float] f = Cast <to=1> (i)
        [sum] y = Add (f, x)
    }"""
    model = network(HEADER + text)
    _, log = cast(model)
    assert log.islands["float"] == (
        "f counts and nothing was measured; bfloat16 tells whole numbers apart up to 256"
    )
    fp16 = graph.upgrade(model.clone())
    assert not to_half(fp16).islands


def test_the_simulation_keeps_signatures() -> None:
    text = """g (bfloat16[N,4] x, float[4,4] w) => (bfloat16[N,4] y, float[N,4] z) {
        [wide] f = Cast <to=1> (x)
        [fc] z = MatMul (f, w)
        [narrow] y = Cast <to=16> (z)
    }"""
    half, _ = cast(network(HEADER + text))
    before = [info.name for info in (*graph.inputs(half), *graph.outputs(half))]
    simulate(half)
    assert [info.name for info in (*graph.inputs(half), *graph.outputs(half))] == before
    assert {value.dtype for value in (*half.graph.inputs, *half.graph.outputs)} == {
        ir.DataType.FLOAT
    }


def test_an_older_opset_is_refused() -> None:
    text = HEADER.replace("22", "21") + "g (float[4] x) => (float[4] y) { y = Relu(x) }"
    with pytest.raises(InputRefused, match="opset 22"):
        to_half(network(text), "bf16")
