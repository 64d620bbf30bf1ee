"""Every node that is planned becomes an integer kernel: placement, form and compiler agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.craft.precision_cast.cast import to_half
from optkit.facts.engines import Engine
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.runtimes import SessionOptions
from tests.networks import NETWORKS, feed, network, sqnr

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'

MORE = {
    "mobile": """g (float[N,3,8,8] x, float[16,3,3,3] w_0, float[16] b_0, float[16,1,3,3] w_dw,
        float[16] b_dw, float[16,16,1,1] w_p, float[16] b_p, float[4,16] w_h) => (float[N,4] y) {
        [zero] lo = Constant <value_float=0.0> ()
        [six] hi = Constant <value_float=6.0> ()
        [stem] s = Conv <pads=[1,1,1,1]> (x, w_0, b_0)
        [stem6] s6 = Clip (s, lo, hi)
        [depth] d = Conv <pads=[1,1,1,1], group=16> (s6, w_dw, b_dw)
        [depth6] d6 = Clip (d, lo, hi)
        [point] p = Conv (d6, w_p, b_p)
        [add] a = Add (p, s6)
        [pool] g = GlobalAveragePool (a)
        [flat] f = Flatten (g)
        [head] y = Gemm <transB=1> (f, w_h)
        }""",
    "vgg": """g (float[N,3,16,16] x, float[16,3,3,3] w_0, float[16] b_0, float[1024,32] w_1,
        float[32] b_1, float[32,32] w_2, float[32] b_2, float[32,4] w_3) => (float[N,4] y) {
        [stem] s = Conv <pads=[1,1,1,1]> (x, w_0, b_0)
        [relu0] r0 = Relu (s)
        [pool] p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r0)
        [flat] f = Flatten (p)
        [fc1] h1 = Gemm (f, w_1, b_1)
        [relu1] r1 = Relu (h1)
        [fc2] h2 = Gemm (r1, w_2, b_2)
        [relu2] r2 = Relu (h2)
        [both] t = Add (r1, r2)
        [fc3] y = MatMul (t, w_3)
        }""",
    "matrices": """g (float[N,32] x, float[32,32] w_1, float[32] b_1, float[32,32] w_2,
        float[32,32] w_3) => (float[N,32] y) {
        [fc1] h1 = MatMul (x, w_1)
        [bias1] a1 = Add (h1, b_1)
        [gelu] g = Gelu (a1)
        [fc2] h2 = MatMul (g, w_2)
        [add] r = Add (x, h2)
        [fc3] h3 = MatMul (r, w_3)
        [relu] y3 = Relu (h3)
        [end] y = Mul (y3, r)
        }""",
    "activations": """g (float[N,8,8,8] x, float[16,8,3,3] w_1, float[16] b_1, float[16,16,3,3] w_2,
        float[16,16,3,3] w_3, float[16,32,1,1] w_4) => (float[N,16,1,1] y) {
        [minus] lo = Constant <value_float=-1.0> ()
        [plus] hi = Constant <value_float=1.0> ()
        [conv1] c1 = Conv <pads=[1,1,1,1]> (x, w_1, b_1)
        [tanh] t1 = Clip (c1, lo, hi)
        [conv2] c2 = Conv <pads=[1,1,1,1]> (t1, w_2)
        [sig] s2 = Sigmoid (c2)
        [silu] m2 = Mul (c2, s2)
        [conv3] c3 = Conv <pads=[1,1,1,1]> (m2, w_3)
        [leaky] l3 = LeakyRelu (c3)
        [cat] k = Concat <axis=1> (l3, t1)
        [conv4] c4 = Conv (k, w_4)
        [pool] y = GlobalAveragePool (c4)
        }""",
}


@pytest.fixture(params=["residual", "attention", *MORE])
def model(request: pytest.FixtureRequest) -> ir.Model:
    return network(NETWORKS.get(request.param) or HEADER + MORE[request.param])


def compiled(backend: Any, where: str, quantized: ir.Model, planned: Any, folder: Path) -> Engine:
    path = folder / "model.onnx"
    graph.save(quantized, path)
    with OnnxRuntime().session(path, SessionOptions(level="none")) as session:
        inputs = session.inputs
    axes = {"N": AxisRange(1, 8, 16)}
    plan = backend.spec(inputs, target(where), PRECISIONS["int8"], axes)
    engine: Engine = backend.compile(path, plan, planned, folder, lambda what, done: None)
    return engine


def test_onnxruntime_computes_all_of_it_in_integers(
    model: ir.Model, workshop: Any, tmp_path: Path
) -> None:
    backend = OnnxRuntime()
    # the networks are too small to gain in integers
    rules = replace(backend.rules(target("cpu"), PRECISIONS["int8"]), kernels=None)
    quantized, assignment, _ = workshop.quantize(model, rules)
    (tmp_path / "out").mkdir()
    found = compiled(backend, "cpu", quantized, assignment.quantized(), tmp_path / "out").landing
    assert found.landed == found.planned > 0, [row for row in found.rows if not row.landed]
    given = feed(model, seed=9)
    with backend.session(tmp_path / "out" / "model.onnx", SessionOptions(threads=1)) as session:
        integer = session.run(given)["y"]
    assert sqnr(workshop.run(quantized, given)["y"], integer) > 50  # as the graph says, in floats


def test_tensorrt_rtx_lands_all_of_it_for_l4(
    model: ir.Model, workshop: Any, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    backend = TensorRTRTX()
    rules = backend.rules(target("l4"), PRECISIONS["int8"])
    half = model.clone()
    to_half(half)
    quantized, assignment, _ = workshop.quantize(model, rules, carrier=half)
    (tmp_path / "out").mkdir()
    found = compiled(backend, "l4", quantized, assignment.quantized(), tmp_path / "out").landing
    assert found.landed == found.planned > 0, [row for row in found.rows if not row.landed]


UNEVEN = """g (float[N,16,16,16] x, float[32,16,1,1] w_0, float[32,1,3,3] w_dw,
    float[16,32,1,1] w_p, float[4,16] w_h) => (float[N,4] y) {
    [expand] e = Conv (x, w_0)
    [swish] s = HardSwish (e)
    [depthwise] d = Conv <pads=[1,1,1,1], group=32> (s, w_dw)
    [swish2] t = HardSwish (d)
    [project] p = Conv (t, w_p)
    [add] a = Add (p, x)
    [pool] g = GlobalAveragePool (a)
    [flat] f = Flatten (g)
    [head] y = Gemm <transB=1> (f, w_h)
    }"""


def test_a_depthwise_convolution_in_fp16_moves_less_on_an_l4_and_keeps_small_channels(
    workshop: Any, tmp_path: Path
) -> None:
    """Why the rules of a GPU leave them in float: one of 32 channels has 50 times the range of the
    others, and counts a 50th in what follows."""
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    rng = np.random.default_rng(0)
    expand, project = rng.normal(0, 0.3, (32, 16, 1, 1)), rng.normal(0, 0.3, (16, 32, 1, 1))
    expand[0] *= 50
    project[:, 0] /= 50
    model = network(HEADER + UNEVEN, w_0=expand, w_p=project)
    half = model.clone()
    to_half(half)
    backend, given = TensorRTRTX(), feed(model, seed=9)
    own = backend.rules(target("l4"), PRECISIONS["int8"])
    exact = workshop.run(model, given)["y"]
    quality, moved = {}, {}
    for form, rules in {"ours": own, "all": replace(own, depthwise_conv="anywhere")}.items():
        simulated, assignment, _ = workshop.quantize(model, rules, simulated=True)
        quality[form] = sqnr(exact, workshop.run(simulated, given)["y"])
        quantized, _, _ = workshop.quantize(model, rules, carrier=half)
        folder = tmp_path / form
        folder.mkdir()
        engine = compiled(backend, "l4", quantized, assignment.quantized(), folder)
        assert engine.landing.landed == engine.landing.planned == (4 if form == "all" else 3)
        moved[form] = engine.bytes_moved
    assert moved["ours"] < moved["all"]
    assert quality["ours"] > quality["all"] + 5
