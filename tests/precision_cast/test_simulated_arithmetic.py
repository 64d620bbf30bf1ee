"""A simulation computes what the half-precision graph with Q/DQ says: beside a numpy evaluation of
that graph, kernel by kernel and as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.precision_cast.cast import to_half
from optkit.craft.precision_cast.simulation import simulate, without_rounding
from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.qdq.insertion import apply, taps
from optkit.facts.assignment import Scheme
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.recipe import Quantization
from optkit.ground.runtimes import SessionOptions, backend
from optkit.road.steps.file_names import GRAPH, SIMULATION
from tests.half_arithmetic import evaluate, rounded_by_kernels
from tests.networks import NETWORKS, feed, network, sqnr

PLAIN = Quantization(weights="rtn", bias_correction=False)
# Blackwell alone has FP4
PAIRS = {"fp16": "l4", "int8": "l4", "fp8": "l4", "int4": "l4", "int8-weight-only": "l4",
         "nvfp4": "rtx5090"}  # fmt: skip
HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


def written(workshop: Any, model: ir.Model, name: str) -> tuple[ir.Model, ir.Model]:
    """(the graph for the compiler, its simulation), as the step `quantize` writes them."""
    half = model.clone()
    to_half(half)
    again = half.clone()
    if PRECISIONS[name].quantized:
        chosen = PRECISIONS[name]
        rules = {chosen: backend("tensorrt-rtx").rules(target(PAIRS[name]), chosen)}
        assignment = assign(model, Scheme(chosen, "fp16", rules))
        if not assignment.quantized():
            pytest.skip("nothing of it is quantized")
        wanted = taps(model, assignment, rules)
        statistics = workshop.statistics(model, wanted) if wanted else None
        qparams = choose_qparams(
            model, assignment, statistics, rules, PLAIN, method="minmax", percentile=100.0,
            carrier=np.float16,
        )  # fmt: skip
        if name == "nvfp4":
            half = graph.upgrade(half, 23)
        given = (qparams, assignment, rules, statistics)
        apply(half, *given, scale_dtype=np.float16)
        apply(again, *given, scale_dtype=np.float16, simulated=True)
    simulate(again)
    return half, again


def run(workshop: Any, model: ir.Model, given: Feed) -> dict[str, np.ndarray]:
    path = workshop.folder / "simulation.onnx"
    graph.save(model, path)
    with OnnxRuntime().session(path, SessionOptions(level="basic", threads=1)) as session:
        return dict(session.run(given))


@pytest.mark.parametrize("precision", PAIRS)
@pytest.mark.parametrize("net", NETWORKS)
def test_every_kernel_computes_what_numpy_does(net: str, precision: str, workshop: Any) -> None:
    real, simulation = written(workshop, network(NETWORKS[net]), precision)
    _compare(workshop, real, simulation, feed(real, batch=4))


EXAMPLES = {
    "digits-vit": ("--recipe", "digits-vit"),
    "digits-cnn": ("--recipe", "digits-cnn"),
    "text": ("--recipe", "examples/03_hf_encoder/optkit.yaml"),
}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "fp8"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_trained_examples_compute_what_numpy_does(
    example: str, precision: str, workshop: Any, tmp_path: Path, optkit_here: Any
) -> None:
    done = optkit_here("quantize", *EXAMPLES[example], "--target", "l4", "--precision", precision,
                       "--out", tmp_path / "q", cache=tmp_path / "store")  # fmt: skip
    assert done.code == 0, done.err
    real, simulation = (graph.load(tmp_path / "q" / name) for name in (GRAPH, SIMULATION))
    random = np.random.default_rng(0)
    if example == "text":
        mask = (np.arange(24) < random.integers(6, 25, (3, 1))).astype(np.int64)
        given = {"input_ids": random.integers(5, 500, mask.shape) * mask, "attention_mask": mask,
                 "token_type_ids": np.zeros_like(mask)}  # fmt: skip
    else:
        given = feed(real, batch=3)
    _compare(workshop, real, simulation, given)


def _compare(workshop: Any, real: ir.Model, simulation: ir.Model, given: Feed) -> None:
    # E2M1 weights are stored as floats, so the nodes that decode them are not in it
    there = {str(value.name) for node in simulation.graph for value in node.outputs}
    names = [name for name in rounded_by_kernels(real) if name in there]
    assert len(names) > 5
    found = run(workshop, graph.expose(simulation, names), given)
    expected, equal = evaluate(real, given, known=found), []
    for name in names:
        ours, theirs = found[name].astype(np.float64), expected[name]
        assert (ours == ours.astype(np.float16)).all(), f"{name} is not rounded"
        # sums in another order may round to a neighbour, more often where they nearly cancel
        step = np.spacing(np.abs(theirs).astype(np.float16)).astype(np.float64)
        assert (np.abs(ours - theirs) <= 1.01 * step + 1e-5 * np.abs(theirs).max()).all(), name
        equal.append((ours == theirs).ravel())
    assert np.concatenate(equal).mean() > 0.99
    whole = evaluate(real, given)
    assert all(sqnr(whole[v.name], found[v.name]) > 55 for v in real.graph.outputs if v.name)


OVERFLOW = (
    HEADER
    + """g (float[N,4] x, float[4,4] w, float[4] b_1) => (float[N,4] y) {
    [fc] m = MatMul (x, w)
    [bias] a = Add (m, b_1)
    [relu] r = Relu (a)
    [small] c = Constant <value_float=0.001> ()
    [back] y = Mul (r, c)
}"""
)


def test_a_value_beyond_the_range_becomes_an_infinity(workshop: Any) -> None:
    """ONNX Runtime leaves it out between two operators for which it has no kernel of FP16."""
    model = network(OVERFLOW, w=np.eye(4) * 300, b_1=np.float32([0, 0, 0, -40000]))
    half = model.clone()
    to_half(half)
    x = np.float32([[1, 218, 219, 300]])  # the last is in the range with the bias of its kernel
    finite = np.float32([[0.3, 65.4, 65.7, 50]])
    np.testing.assert_allclose(workshop.run(half, {"x": x})["y"], finite, rtol=1e-3)
    simulate(half)
    found = run(workshop, half, {"x": x})["y"]
    np.testing.assert_allclose(found, np.float32([[0.3, 65.4, np.inf, 50]]), rtol=1e-3)


@pytest.mark.parametrize("net", NETWORKS)
def test_without_its_rounding_it_is_the_fp32_graph_again(net: str, workshop: Any) -> None:
    model = network(NETWORKS[net])
    half = model.clone()
    to_half(half)
    simulate(half)
    names = {str(v.name) for node in model.graph for v in node.outputs}
    without_rounding(half)
    kept = {str(v.name) for node in half.graph for v in node.outputs}
    assert names <= kept
    assert not any(v.dtype == ir.DataType.FLOAT16 for node in half.graph for v in node.outputs)
    given = feed(model, batch=4)
    # its constants are still those of FP16
    assert sqnr(workshop.run(model, given)["y"], workshop.run(half, given)["y"]) > 55


def test_large_constants_stay_half(workshop: Any) -> None:
    text = """g (float[N,64] x, float[64,128] w, float[128] b_1) => (float[N,128] y) {
        [fc] m = MatMul (x, w)
        [bias] y = Add (m, b_1)
    }"""
    half = network(HEADER + text)
    to_half(half)
    simulate(half)
    stored = {v.name: v.dtype for v in half.graph.initializers.values()}
    assert stored == {"w": ir.DataType.FLOAT16, "b_1": ir.DataType.FLOAT}
