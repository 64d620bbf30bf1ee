"""A MaxPool of floats before integers stays a pool of floats in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from tests.codes import weights

RNG = np.random.default_rng(31)
POOL = "p = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>({value}) "
LAST = (
    "q = QuantizeLinear(p, s, z) d = DequantizeLinear(q, s, z) "
    "w = DequantizeLinear<axis = 0>(wq, sw, zw) y = Conv<pads = [1, 1, 1, 1]>(d, w)"
)
FLOAT = "c = Conv<pads = [1, 1, 1, 1]>(x, v) r = PRelu(c, slope) "
INTEGERS = (
    "i = QuantizeLinear(x, s, z) j = DequantizeLinear(i, s, z) "
    "u = DequantizeLinear<axis = 0>(uq, sw, zw) c = Conv<pads = [1, 1, 1, 1]>(j, u) r = Relu(c) "
)


def network(build, before: str, last: str = LAST) -> ir.Model:
    constants = {
        "v": RNG.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "slope": np.full((8, 1, 1), 0.25, np.float32),
        "wq": weights(RNG, (8, 8, 3, 3)),
        "uq": weights(RNG, (8, 3, 3, 3)),
        "sw": np.full(8, 0.002, np.float32),
        "zw": np.zeros(8, np.int8),
        "s": np.array(0.05, np.float32),
        "z": np.array(128, np.uint8),
    }
    return build("float[b, 3, 9, 9] x", "float[b, 8, 4, 4] y", before + last, **constants)


def pooled_dtype(model: ir.Model, folder) -> ir.DataType | None:
    """Of what ONNX Runtime pools after its own optimizations."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    graph = ir.load(folder / "optimized.onnx").graph
    (pool,) = (node for node in graph if node.op_type in ("MaxPool", "NhwcMaxPool"))
    before = pool.inputs[0].producer()
    return ir.DataType.UINT8 if before.op_type.startswith(("Quantize", "QLinear")) else None


def test_floats_are_pooled_as_floats(as_ort, build, tmp_path) -> None:
    model = network(build, FLOAT + POOL.format(value="r"))
    x = RNG.standard_normal((2, 3, 9, 9)).astype(np.float32)
    after, log = as_ort(model, {"x": x}, atol=0.11)
    assert log.counts["float_pool"] == 1
    assert pooled_dtype(model, tmp_path) is ir.DataType.UINT8
    assert pooled_dtype(after, tmp_path) is None


@pytest.mark.parametrize(
    "before",
    [
        INTEGERS + POOL.format(value="r"),
        INTEGERS + "m = MaxPool<kernel_shape = [1, 1]>(r) " + POOL.format(value="m"),
    ],
    ids=["a convolution", "two pools"],
)
def test_what_integers_compute_is_pooled_in_codes(as_ort, build, before) -> None:
    model = network(build, before)
    x = RNG.standard_normal((2, 3, 9, 9)).astype(np.float32)
    _, log = as_ort(model, {"x": x}, levels=(False,), atol=0.11)
    assert "float_pool" not in log.counts


def test_a_result_that_floats_read_too_is_left(as_ort, build) -> None:
    """ONNX Runtime does not move a quantization in front of it."""
    last = LAST.replace("y = ", "n = ") + " y = Add(n, p)"
    model = network(build, FLOAT + POOL.format(value="r"), last)
    x = RNG.standard_normal((2, 3, 9, 9)).astype(np.float32)
    _, log = as_ort(model, {"x": x}, atol=0.11)
    assert "float_pool" not in log.counts
