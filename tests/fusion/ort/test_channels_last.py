"""Codes that a float stem leaves to a residual stage get the layout of integer convolutions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime

from tests.codes import weights

RNG = np.random.default_rng(29)
BLOCK = (
    "d{a} = DequantizeLinear(q{a}, s, z) c{a} = Conv<pads = [1, 1, 1, 1]>(d{a}, w) "
    "m{a} = QuantizeLinear(c{a}, s, z) n{a} = DequantizeLinear(m{a}, s, z) t{a} = Add(n{a}, d{a}) "
    "q{b} = QuantizeLinear(t{a}, s, z) "
)


def network(build, stem: str, blocks: int = 2) -> ir.Model:
    weight = "w = DequantizeLinear<axis = 0>(wq, sw, zw) "
    body = weight + stem
    body += "".join(BLOCK.format(a=index, b=index + 1) for index in range(blocks))
    body += f"y = DequantizeLinear(q{blocks}, s, z)"
    constants = {
        "v": RNG.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "wq": weights(RNG, (8, 8, 3, 3)),
        "sw": np.full(8, 0.002, np.float32),
        "zw": np.zeros(8, np.int8),
        "s": np.array(0.05, np.float32),
        "z": np.array(128, np.uint8),
    }
    return build("float[b, 3, 8, 8] x", "float[b, 8, 8, 8] y", body, **constants)


STEM = "c = Conv<pads = [1, 1, 1, 1]>(x, v) r = Relu(c) q0 = QuantizeLinear(r, s, z) "


def transposes(model: ir.Model, folder) -> int:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    optimized = ir.load(folder / "optimized.onnx")
    return sum(node.op_type == "Transpose" for node in optimized.graph)


def test_transposes_do_not_stay_at_every_sum(as_ort, build, tmp_path) -> None:
    model = network(build, STEM)
    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    # the integer kernels differ from Q/DQ in floats by a step here and there, with or without
    after, log = as_ort(model, {"x": x}, atol=0.11)
    assert log.counts == {"channels_last": 1}
    assert transposes(after, tmp_path) < transposes(model, tmp_path)


def test_with_the_same_kernels_it_is_the_identity(build) -> None:
    from optkit.craft.fusion.ort import to_ort

    model = network(build, STEM)
    after = model.clone()
    to_ort(after)
    feed = {"x": RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)}
    results = [
        onnxruntime.InferenceSession(
            ir.to_proto(each).SerializeToString(), providers=["CPUExecutionProvider"]
        ).run(None, feed)[0]
        for each in (model, after)
    ]
    np.testing.assert_array_equal(*results)


def test_codes_that_an_integer_stem_makes_are_left(as_ort, build) -> None:
    stem = (
        "i = QuantizeLinear(x, s, z) j = DequantizeLinear(i, s, z) "
        "k = QuantizeLinear(v, s, z) u = DequantizeLinear(k, s, z) "
        "c = Conv<pads = [1, 1, 1, 1]>(j, u) r = Relu(c) q0 = QuantizeLinear(r, s, z) "
    )
    model = network(build, stem)
    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    _, log = as_ort(model, {"x": x}, levels=(False,))
    assert "channels_last" not in log.counts


def test_without_a_sum_nothing_is_turned(as_ort, build) -> None:
    stem = STEM.replace("q0 =", "p =") + (
        "dp = DequantizeLinear(p, s, z) cp = Conv<pads = [1, 1, 1, 1]>(dp, w) "
        "q0 = QuantizeLinear(cp, s, z) "
    )
    model = network(build, stem, blocks=0)
    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    _, log = as_ort(model, {"x": x}, levels=(False,))
    assert log.counts == {}
