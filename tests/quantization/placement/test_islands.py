"""Islands of integer convolutions, and what their borders convert."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.assignment import Assignment, Scheme
from optkit.quantization.placement.assign import assign
from optkit.quantization.placement.islands import islands
from tests.networks import network
from tests.quantization.workshop import RULES

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'

CHAIN = """g (float[N,8,4,4] x, float[16,8,1,1] w_a, float[8,16,3,3] w_b) => (float[N,8,4,4] y) {
    [first] h = Conv (x, w_a)
    [relu] r = Relu (h)
    [second] s = Conv <pads=[1,1,1,1]> (r, w_b)
    [float] y = Sigmoid (s)
}"""
RESIDUAL = """g (float[N,8,4,4] x, float[8,8,1,1] w_a, float[8,8,1,1] w_b) => (float[N,8,4,4] y) {
    [start] e = Exp (x)
    [first] h = Conv (e, w_a)
    [add] s = Add (h, x)
    [relu] r = Relu (s)
    [second] t = Conv (r, w_b)
    [float] y = Sigmoid (t)
}"""
JOINED = """g (float[N,8,4,4] x, float[4,8,1,1] w_a, float[4,8,1,1] w_b, float[8,8,1,1] w_c)
    => (float[N,8,2,2] y) {
    [left] l = Conv (x, w_a)
    [right] r = Conv (x, w_b)
    [cat] j = Concat <axis=1> (l, r)
    [pool] p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (j)
    [last] t = Conv (p, w_c)
    [float] y = Sigmoid (t)
}"""
GHOST = """g (float[N,8,4,4] x, float[4,8,1,1] w_a, float[4,1,3,3] w_d, float[8,8,1,1] w_c)
    => (float[N,8,4,4] y) {
    [left] l = Conv (x, w_a)
    [right] r = Conv <group=4, pads=[1,1,1,1]> (l, w_d)
    [cat] j = Concat <axis=1> (l, r)
    [last] t = Conv (j, w_c)
    [float] y = Sigmoid (t)
}"""


def found(text: str, *integer: str) -> list[tuple[list[str], int, int]]:
    return [(i.nodes, i.macs, i.converted) for i in islands(network(HEADER + text), integer)]


def test_a_chain_converts_its_input_and_its_result() -> None:
    macs = 16 * 16 * 8 + 8 * 16 * 16 * 9
    assert found(CHAIN, "first", "second") == [(["first", "second"], macs, 8 * 16 + 8 * 16)]
    assert found(CHAIN, "second") == [(["second"], 8 * 16 * 16 * 9, 16 * 16 + 8 * 16)]


def test_a_sum_converts_the_operand_that_is_a_float() -> None:
    ((nodes, macs, converted),) = found(RESIDUAL, "first", "second")
    assert (nodes, macs) == (["first", "second"], 2 * 16 * 8 * 8)
    assert converted == 3 * 8 * 16  # the start, the shortcut, the result


def test_codes_pass_through_a_concatenation_of_codes_and_pooling() -> None:
    ((nodes, macs, converted),) = found(JOINED, "left", "right", "last")
    assert nodes == ["left", "right", "last"]
    assert macs == 2 * 16 * 4 * 8 + 4 * 8 * 8
    assert converted == 8 * 16 + 8 * 4  # the input once for both readers, the result


def test_a_float_operand_makes_a_concatenation_a_border() -> None:
    assert found(GHOST, "left", "last") == [
        (["left"], 16 * 4 * 8, 8 * 16 + 4 * 16), (["last"], 16 * 8 * 8, 8 * 16 + 8 * 16)
    ]  # fmt: skip


def test_an_image_of_any_size_makes_an_island_unknown() -> None:
    text = CHAIN.replace("[N,8,4,4]", "[N,8,H,W]")
    assert found(text, "first", "second") == []


@given(st.sets(st.sampled_from(["first", "second", "left", "right", "last"])),
       st.sampled_from([CHAIN, RESIDUAL, JOINED, GHOST]))  # fmt: skip
def test_each_convolution_lies_on_one_island(integer: set[str], text: str) -> None:
    names = [node.name for node in network(HEADER + text).graph if node.name in integer]
    listed = [name for nodes, *_ in found(text, *integer) for name in nodes]
    assert sorted(listed) == sorted(map(str, names))


def decide(
    model: ir.Model, least: float | None, overrides: dict[str, str] | None = None
) -> Assignment:
    rules = replace(RULES["cpu"], least_per_border=least, depthwise_conv=False, float_output=False)
    return assign(model, Scheme("int8", "fp32", {"int8": rules}), None, overrides)


@pytest.mark.parametrize(("least", "planned"), [(None, 2), (2.6, 2), (2.7, 1), (4.1, 0)])
def test_an_island_below_the_least_stays_in_float(least: float | None, planned: int) -> None:
    """`left`: 512 multiplications for 192 elements; `last`: 1024 for 256."""
    model = network(HEADER + GHOST)
    decided = decide(model, least)
    assert len(decided.quantized()) == planned
    if planned < 2:
        assert decided.nodes["left"] == "fp32"
        assert "3 multiplications per element" in decided.reasons["left"]


def test_a_node_that_the_recipe_names_keeps_its_precision() -> None:
    decided = decide(network(HEADER + GHOST), np.inf, {"le*": "int8"})
    assert decided.quantized() == {"left": "int8"}
