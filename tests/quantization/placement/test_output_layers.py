"""The layers whose results are predictions: heads of detectors, averages of bins."""

from __future__ import annotations

import pytest

from optkit.craft.quantization.placement.output_layers import output_layers
from tests.networks import network
from tests.quantization.placement.test_assign import HEADER, decide
from tests.quantization.workshop import RULES, names

DETECTOR = HEADER + (
    """g (float[N,8,8,8] x, float[8,8,1,1] w, float[8,8,1,1] w_box, float[3,8,1,1] w_class,
        float[1,4,1,1] bins, float[1,1,64] middles) => (float[N,4,64] y) {
        [trunk] c = Conv (x, w)
        [relu] r = Relu (c)
        [box] b = Conv (r, w_box)
        [to_bins] shape = Constant <value_ints=[0, 2, 4, 64]> ()
        [split] d = Reshape (b, shape)
        [turn] t = Transpose <perm=[0, 2, 1, 3]> (d)
        [softmax] p = Softmax <axis=1> (t)
        [dfl] m = Conv (p, bins)
        [to_sides] sides = Constant <value_ints=[0, 2, 64]> ()
        [flat] f = Reshape (m, sides)
        [halves] near, far = Split <axis=1, num_outputs=2> (f)
        [low] l = Sub (middles, near)
        [high] h = Add (middles, far)
        [extent] e = Sub (h, l)
        [class] s = Conv (r, w_class)
        [to_scores] scores = Constant <value_ints=[0, 3, 64]> ()
        [rows] q = Reshape (s, scores)
        [sigmoid] z = Sigmoid (q)
        [all] y = Concat <axis=1> (e, z)
        }"""
)


def test_the_heads_of_a_detector_and_its_average_of_bins() -> None:
    model = network(DETECTOR)
    assert {node.name for node in output_layers(model)} == {"box", "class", "dfl"}
    found = decide(model, RULES["cpu"])
    assert names(found) == {"trunk": "int8", "box": "fp16", "dfl": "fp16", "class": "fp16"}
    found = decide(model, RULES["gpu"])
    assert names(found) == {"trunk": "int8", "box": "int8", "dfl": "fp16", "class": "int8"}
    assert "bins" in found.reasons["dfl"]


@pytest.mark.parametrize("layer", ["MatMul (p, bins)", "Gemm (p, bins)"])
def test_an_average_of_bins_as_a_matrix_product(layer: str) -> None:
    text = HEADER + (
        f"""g (float[4,8] x, float[8,16] w, float[16,1] bins) => (float[4,1] y) {{
        [side] d = MatMul (x, w)
        [softmax] p = Softmax (d)
        [mean] y = {layer}
        }}"""
    )
    found = decide(network(text), RULES["gpu"])
    assert names(found) == {"side": "int8", "mean": "fp16"}


@pytest.mark.parametrize(
    "end",
    [
        "[sum] y = Add (r, c)",  # a shortcut
        "[gate] s = Sigmoid (c)\n[silu] y = Mul (c, s)",
        "[other] o = Conv (x, w_3)\n[sum] a = Add (o, c)\n[relu_2] y = Relu (a)",  # a projection
        "[grown] y = Concat <axis=1> (r, c)",  # a dense connection
    ],
)
def test_maps_of_features_have_no_output_layers(end: str) -> None:
    text = HEADER + (
        f"""g (float[N,8,8,8] x, float[8,8,1,1] w, float[8,8,1,1] w_2, float[8,8,1,1] w_3)
        => (float[N,A,8,8] y) {{
        [first] f = Conv (x, w)
        [relu] r = Relu (f)
        [second] c = Conv (r, w_2)
        {end}
        }}"""
    )
    model = network(text)
    assert not output_layers(model)
    assert "fp16" not in decide(model, RULES["cpu"]).nodes.values()


def test_an_angle_beside_the_box_that_it_turns() -> None:
    text = HEADER + (
        """g (float[N,8,8,8] x, float[8,8,1,1] w, float[1,8,1,1] w_2, float[1,8,1,1] w_3)
        => (float[N,2,8,8] y) {
        [angle] a = Conv (x, w_2)
        [cos] c = Cos (a)
        [side] s = Conv (x, w_3)
        [turned] t = Mul (s, c)
        [all] y = Concat <axis=1> (t, a)
        }"""
    )
    assert {node.name for node in output_layers(network(text))} == {"angle", "side"}
