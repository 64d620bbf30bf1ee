"""Models of older opsets and IR versions: converted, they compute what ONNX Runtime computed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from optkit.craft.fusion import fuse
from optkit.facts.errors import InputRefused
from optkit.ground import graph


def run(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: np.ndarray = session.run(None, feed)[0]
    return found


def assert_converts(text: str, **feed: np.ndarray) -> ir.Model:
    """Both the upgraded and the fused graph give what the model as given gives."""
    given = onnx.parser.parse_model(text)
    expected = run(given, feed)
    model = graph.upgrade(ir.from_proto(given))
    np.testing.assert_allclose(run(ir.to_proto(model), feed), expected, rtol=1e-5, atol=1e-5)
    fuse(model)
    np.testing.assert_allclose(run(ir.to_proto(model), feed), expected, rtol=1e-5, atol=1e-5)
    return model


def test_biases_of_ir_version_3_are_inputs_with_a_default() -> None:
    """The version that lists every initializer as an input: all models before 2019."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    model = assert_converts(
        """<ir_version: 3, opset_import: ["" : 9]>
        g (float[2,4] x, float[4] b) => (float[2,4] y) <float[4] b = {1.0, 2.0, 3.0, 4.0}>
        { y = Add (x, b) }""",
        x=x,
    )
    assert [value.name for value in model.graph.inputs] == ["x"]


def test_what_the_converter_finds_broken_is_refused() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 9]> g (float[2] x) => (float[2] y)'
        "{ y = Add (x, nowhere) }"
    )
    with pytest.raises(InputRefused, match=r"opset 9 cannot be converted to 21: .*undefined"):
        graph.upgrade(model)


def test_tables_of_positions_in_two_dimensions_have_shapes() -> None:
    """onnx 1.23's propagation of values takes the column and the row for vectors that do not fit
    each other, and strict inference then refuses a valid graph."""
    model = assert_converts(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[4,6] x) => (int64[4,6] y)
        <int64[4] a = {0, 1, 2, 3}, int64[6] b = {5, 4, 3, 2, 1, 0}, int64[1] one = {1},
         int64[1] zero = {0}> {
            p = Unsqueeze (a, one)
            q = Unsqueeze (b, zero)
            d = Sub (p, q)
            s = Shape (x)
            y = Expand (d, s)
        }""",
        x=np.zeros((4, 6), np.float32),
    )
    assert graph.outputs(model)[0].shape == (4, 6)


@pytest.mark.parametrize("axes", ["3,4,2", "N,C,2"])
def test_group_norms_with_a_scale_per_group(axes: str) -> None:
    """Before opset 21 scale and bias were of the groups, from it on they are of the channels; onnx
    1.23's converter leaves them."""
    assert_converts(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[{axes}] x) => (float[{axes}] y)
        <float[2] s = {{2.0, -3.0}}, float[2] b = {{0.5, 7.0}}>
        {{ y = GroupNormalization <num_groups = 2, epsilon = 0.01> (x, s, b) }}""",
        x=np.random.default_rng(1).standard_normal((3, 4, 2)).astype(np.float32),
    )


def test_a_norm_whose_axes_are_the_default() -> None:
    """onnx 1.23's strict inference forgets the default where it looks into the function's body."""
    x = np.random.default_rng(2).standard_normal((3, 2, 4, 4)).astype(np.float32)
    assert_converts(
        """<ir_version: 7, opset_import: ["" : 13]>
        g (float[3,2,4,4] x) => (float[3,2,4,4] y) { y = MeanVarianceNormalization (x) }""",
        x=x,
    )


def test_a_resize_that_was_given_no_scales() -> None:
    """Until opset 12 an empty tensor said so, since 13 it is left out."""
    x = np.random.default_rng(3).standard_normal((1, 1, 4, 4)).astype(np.float32)
    assert_converts(
        """<ir_version: 6, opset_import: ["" : 11]>
        g (float[1,1,4,4] x, float[0] none) => (float[1,1,2,2] y)
        <int64[4] sizes = {1, 1, 2, 2}> { y = Resize <mode = "nearest"> (x, none, none, sizes) }""",
        x=x, none=np.zeros(0, np.float32),
    )  # fmt: skip


def test_a_model_of_classical_operators_alone() -> None:
    """It imports no opset of plain ONNX."""
    model = assert_converts(
        """<ir_version: 8, opset_import: ["ai.onnx.ml" : 1]>
        g (float[N,4] x) => (float[N,4] y) { y = ai.onnx.ml.Binarizer <threshold = 0.5> (x) }""",
        x=np.array([[0.1, 0.9, 0.5, 0.6]], np.float32),
    )
    assert model.opset_imports[""] == 21


def test_a_scan_over_batches_is_refused_in_words() -> None:
    """Opset 9 gave Scan another meaning, and the converter passes the old one through."""
    model = ir.from_onnx_text(
        """<ir_version: 3, opset_import: ["" : 8]>
        g (float[1,2] i, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {
            y, z = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] n)
                => (float[2] t, float[2] o) { t = Add (s, n)  o = Identity (t) }> ("", i, x)
        }"""
    )
    with pytest.raises(InputRefused, match="Scan in opset 8"):
        graph.upgrade(model)
