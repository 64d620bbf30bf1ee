"""Graphs that eight tools have quantized: recognized, repaired, and without quantization again.

The graphs are those of the study experiments/foreign for its CNN. ONNX Runtime, with its own
optimizations off, is the reference.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft import foreign
from optkit.craft.foreign.qdq_parameters import DEQUANTIZE, QUANTIZE, codes_of
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, simulator

GRAPHS = Path(__file__).parent / "graphs"
TOOLS = {
    "aimet": "AIMET",
    "brevitas": "Brevitas",
    "modelopt": "ModelOpt",
    "neural_compressor": "Neural Compressor",
    "nncf": "NNCF",
    "olive": "Olive",
    "ort_dynamic": "ONNX Runtime's quantizer",
    "ort_qdq": "ONNX Runtime's quantizer",
    "ort_qoperator": "ONNX Runtime's quantizer",
    "pt2e": "PyTorch pt2e",
}
_PAIR = """<ir_version: 8, opset_import: ["" : 21]> agraph (float[3, 4] x) => (float[3, 4] y)
<float s = {scale}, {kind} z = {{{zero}}}>
{{ q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = Neg(d) }}"""


def loaded(name: str) -> ir.Model:
    model = graph.upgrade(graph.load(GRAPHS / f"{name}.onnx"), 21)
    graph.ensure_names(model)
    graph.infer_shapes(model)
    return model


def run(model: ir.Model, feed: np.ndarray) -> np.ndarray:
    """The first output, with the same sums on any CPU."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(ir.to_proto(model).SerializeToString())
        options = SessionOptions(1, level="none")
        with simulator().session(file, options) as session:
            found = session.run({session.inputs[0].name: feed})
    return np.asarray(found[str(model.graph.outputs[0].name)])


def sqnr(reference: np.ndarray, other: np.ndarray) -> float:
    noise = float(((reference - other) ** 2).sum())
    return np.inf if noise == 0 else 10 * np.log10(float((reference**2).sum()) / noise)


def pictures(name: str) -> np.ndarray:
    size = 1 if name == "brevitas" else 4
    return np.random.default_rng(3).normal(size=(size, 3, 16, 16)).astype(np.float32)


@pytest.mark.parametrize("name", TOOLS)
def test_the_tool_is_recognized(name: str) -> None:
    assert foreign.producer_of(graph.load(GRAPHS / f"{name}.onnx")).name == TOOLS[name]


@pytest.mark.parametrize("name", TOOLS)
def test_repaired_graphs_have_only_pairs_that_tensorrt_takes(name: str) -> None:
    model = loaded(name)
    asked = {one.node for one in foreign.requested_products(model) if one.weight is not None}
    foreign.repair(model)
    assert foreign.integer_operators(model) == []
    for node in model.graph:
        if node.op_type in (QUANTIZE, DEQUANTIZE):
            codes = codes_of(node)
            assert codes is not None and codes.symmetric
            assert codes.dtype in (ir.DataType.INT8, ir.DataType.FLOAT8E4M3FN)
            scale = graph.array(node.inputs[1])
            assert scale is not None and (scale.size > 1 or scale.shape == ())
    assert set(foreign.assignment(model)) == asked and len(asked) >= 4


@pytest.mark.parametrize("name", TOOLS)
def test_a_repaired_graph_still_computes_the_same_up_to_its_rounding(name: str) -> None:
    model, feed = loaded(name), pictures(name)
    before = run(model, feed)
    repairs = foreign.repair(model)
    after = run(model, feed)
    if all(one.exact for one in repairs):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
    assert sqnr(before, after) > 30


@pytest.mark.parametrize("name", TOOLS)
def test_exact_repairs_change_nothing(name: str) -> None:
    model, feed = loaded(name), pictures(name)
    before = run(model, feed)
    for one in foreign.REPAIRS:
        if one.exact and one.run(model):
            graph.infer_shapes(model)
            # a float sum may fall on the other side of a rounding boundary of one code
            assert sqnr(before, run(model, feed)) > 50, one.name


@pytest.mark.parametrize("name", TOOLS)
def test_the_float_graph_is_close_and_has_no_codes(name: str) -> None:
    model, feed = loaded(name), pictures(name)
    before = run(model, feed)
    foreign.normal_form(model)
    foreign.remove_quantization(model)
    assert not foreign.is_quantized(model)
    assert sqnr(run(model, feed), before) > 30


def test_a_relu_that_a_pair_does_is_written_again() -> None:
    """ONNX Runtime's quantizer removes a Relu before codes that begin at zero."""
    model = loaded("ort_qdq")
    assert not any(node.op_type == "Relu" for node in model.graph)
    assert foreign.remove_quantization(model) >= 3
    assert sum(node.op_type == "Relu" for node in model.graph) >= 3


@settings(max_examples=40, deadline=None)
@given(zero=st.integers(0, 255), scale=st.floats(0.01, 0.1), seed=st.integers(0, 999))
def test_unsigned_pairs_become_signed_without_a_change(zero: int, scale: float, seed: int) -> None:
    text = _PAIR.format(scale=f"{{{scale:f}}}", kind="uint8", zero=zero)
    model = ir.from_onnx_text(text)
    graph.ensure_names(model)
    graph.infer_shapes(model)
    feed = np.random.default_rng(seed).normal(scale=5, size=(3, 4)).astype(np.float32)
    before = run(model, feed)
    signed = next(one for one in foreign.REPAIRS if one.name == "signed activations")
    assert signed.run(model) != []
    np.testing.assert_array_equal(run(model, feed), before)
    node = next(node for node in model.graph if node.op_type == QUANTIZE)
    codes = codes_of(node)
    assert codes is not None and codes.dtype == ir.DataType.INT8
    assert int(codes.zero_point) == zero - 128


@settings(max_examples=40, deadline=None)
@given(zero=st.integers(0, 255), scale=st.floats(0.01, 0.1), seed=st.integers(0, 999))
def test_symmetric_ranges_contain_the_given_ones(zero: int, scale: float, seed: int) -> None:
    text = _PAIR.format(scale=f"{{{scale:f}}}", kind="uint8", zero=zero)
    model = ir.from_onnx_text(text)
    graph.ensure_names(model)
    graph.infer_shapes(model)
    low, high = -zero * scale, (255 - zero) * scale
    feed = np.random.default_rng(seed).uniform(low, high, (3, 4)).astype(np.float32)
    foreign.repair(model)
    step = max(-low, high) / 127
    np.testing.assert_allclose(run(model, feed), -feed, atol=0.5 * step + 1e-4)


def test_scales_of_one_element_become_scalars() -> None:
    text = _PAIR.format(scale="{0.05}", kind="int8", zero=0)
    text = text.replace("float s", "float[1] s").replace("int8 z", "int8[1] z")
    model = ir.from_onnx_text(text)
    graph.ensure_names(model)
    graph.infer_shapes(model)
    assert [one.name for one in foreign.repair(model)] == ["scalars"]
    shapes = [graph.array(value) for node in model.graph for value in node.inputs[1:]]
    assert all(numbers is not None and numbers.shape == () for numbers in shapes)


def test_a_float_graph_is_no_quantized_graph() -> None:
    text = "agraph (float[2] x) => (float[2] y) { y = Relu(x) }"
    model = ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : 21]> {text}')
    assert not foreign.is_quantized(model) and foreign.repair(model) == ()


def test_float_weights_become_fp8_codes_and_floats_again() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> agraph (float[3, 2] x) => (float[3, 2] y)
    <float[2, 2] w = {0.3, -1.7, 900.0, 0.05}, float s = {2.0}>
    { q = QuantizeLinear<output_dtype = 17>(w, s) d = DequantizeLinear(q, s) y = MatMul(x, d) }"""
    model = ir.from_onnx_text(text)
    graph.ensure_names(model)
    graph.infer_shapes(model)
    foreign.repair(model)
    (product,) = foreign.products(model)
    assert product.weight is not None and product.weight.dtype == "float8e4m3fn"
    foreign.floats_for_float_codes(model)
    (node,) = model.graph
    weights = graph.array(node.inputs[1])
    # E4M3: three bits of mantissa, at most 448
    assert weights is not None and weights.tolist() == [[0.3125, -1.75], [896.0, 0.05078125]]
