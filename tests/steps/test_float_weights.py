"""A simulation with the values of its weights is the same simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.road.steps.bodies import float_weights
from optkit.road.steps.bodies.float_weights import dequantize_weights
from optkit.road.steps.bodies.sessions import folded

# one weight has a reader twice, through two equal nodes; blocks, zero points, another opset type
TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,8] x, int8[8,8] w, float[8] s, int8[8] o, float one, uint8 half, int4[8,8] v,
   float[2,8] t) => (float[N,8] y, float[N,8] z) {
  q = QuantizeLinear(x, one, half)
  d = DequantizeLinear(q, one, half)
  w1 = DequantizeLinear<axis=1>(w, s, o)
  w2 = DequantizeLinear<axis=1>(w, s, o)
  w3 = DequantizeLinear<axis=0, block_size=4>(v, t)
  a = MatMul(d, w1)
  y = MatMul(a, w3)
  z = MatMul(x, w2)
}"""


def model() -> ir.Model:
    rng = np.random.default_rng(0)
    numbers = {
        "w": ir.Tensor(rng.integers(-128, 128, (8, 8)).astype(np.int8)),
        "s": ir.Tensor(rng.uniform(0.01, 0.02, 8).astype(np.float32)),
        "o": ir.Tensor(rng.integers(-4, 4, 8).astype(np.int8)),
        "one": ir.Tensor(np.float32(0.03)),
        "half": ir.Tensor(np.uint8(128)),
        "v": ir.tensor(rng.integers(-8, 8, (8, 8)).astype(np.int8), dtype=ir.DataType.INT4),
        "t": ir.Tensor(rng.uniform(0.1, 0.2, (2, 8)).astype(np.float32)),
    }
    made = ir.from_onnx_text(TEXT)
    for value in [value for value in made.graph.inputs if value.name in numbers]:
        made.graph.inputs.remove(value)
        value.const_value = numbers[str(value.name)]
        made.graph.register_initializer(value)
    return made


def test_outputs_are_equal_to_the_bit(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    graph.save(model(), tmp_path / "model.onnx")
    with simulator().session(tmp_path / "model.onnx", SessionOptions(1, level="none")) as session:
        expected = session.run({"x": x})
    with folded(model(), "none") as session:
        found = session.run({"x": x})
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


BETWEEN_PAIRS = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,8] x, int8[8,8] w, float[8] s, float[8] b, float one, uint8 half) => (float[N,8] y) {
  q = QuantizeLinear(x, one, half)
  d = DequantizeLinear(q, one, half)
  v = DequantizeLinear<axis=1>(w, s)
  g = Gemm(d, v, b)
  r = Relu(g)
  p = QuantizeLinear(r, one, half)
  y = DequantizeLinear(p, one, half)
}"""


@pytest.mark.parametrize("level", ["basic", "all"])
def test_values_between_pairs_get_no_codes_of_one_scale_per_tensor(level: Any) -> None:
    """ONNX Runtime's WeightBiasQuantization would give them such codes. The channels' scales lie
    between 0.0001 and 0.1, so that codes of one scale lose the small channels."""
    rng = np.random.default_rng(0)
    numbers = {
        "w": rng.integers(-128, 128, (8, 8)).astype(np.int8),
        "s": np.geomspace(1e-4, 0.1, 8).astype(np.float32),
        "b": np.zeros(8, np.float32), "one": np.float32(0.01), "half": np.uint8(128),
    }  # fmt: skip
    made = ir.from_onnx_text(BETWEEN_PAIRS)
    for value in [value for value in made.graph.inputs if value.name in numbers]:
        made.graph.inputs.remove(value)
        value.const_value = ir.Tensor(numbers[str(value.name)])
        made.graph.register_initializer(value)
    x = rng.uniform(-1, 1, (64, 8)).astype(np.float32)
    (expected,) = ReferenceEvaluator(ir.to_proto(made)).run(None, {"x": x})
    with folded(made, level) as session:
        found = session.run({"x": x})["y"]
    np.testing.assert_allclose(found, expected, atol=0.0101)  # a sum between two codes
    assert (found == expected).mean() > 0.99


def test_only_codes_of_weights_become_values() -> None:
    made = model()
    assert dequantize_weights(made)
    kinds = [node.op_type for node in made.graph]
    assert kinds.count("DequantizeLinear") == 1 and kinds.count("QuantizeLinear") == 1
    readers = [node.inputs[1] for node in made.graph if node.op_type == "MatMul"]
    assert readers[0] is readers[2] and len({id(value) for value in readers}) == 2
    assert not dequantize_weights(made)


def test_weights_that_are_too_large_stay_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_weights, "_MOST_BYTES", 500)  # 4 bytes of each of 64 + 64 values
    made = model()
    assert not dequantize_weights(made)
    assert sum(node.op_type == "DequantizeLinear" for node in made.graph) == 4
    monkeypatch.setattr(float_weights, "_MOST_BYTES", 512)
    assert dequantize_weights(made)
