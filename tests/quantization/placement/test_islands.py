"""Islands of integer convolutions, and what their borders convert."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.backends.kernel_speeds import kernel_speeds
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.islands import MARGIN, Island, between_codes, islands, pays
from optkit.facts.assignment import Assignment, Scheme
from optkit.facts.placement import ConvSpeed, KernelSpeeds, OperatorSpeed, ProductSpeeds
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.ground.devices import target
from optkit.ground.statistics import Statistics, ValueStatistics
from tests.networks import network
from tests.quantization.workshop import INT8, RULES

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
SUM = """g (float[N,8,4,4] x, float[8,8,1,1] w_a, float[8,8,1,1] w_b, float[8,8,1,1] w_c)
    => (float[N,8,4,4] y, float[N,8,4,4] z) {
    [left] l = Conv (x, w_a)
    [right] r = Conv (l, w_b)
    [add] s = Add (l, r)
    [float] y = Sigmoid (s)
    [last] t = Conv (r, w_c)
    [also] z = Sigmoid (t)
}"""
MOBILE = """g (float[N,8,4,4] x, float[16,8,1,1] w_a, float[16,1,3,3] w_d, float[8,16,1,1] w_b)
    => (float[N,8,4,4] y) {
    [expand] h = Conv (x, w_a)
    [relu] r = Relu (h)
    [depthwise] d = Conv <group=16, pads=[1,1,1,1]> (r, w_d)
    [relu_2] t = Relu (d)
    [project] s = Conv (t, w_b)
    [float] y = Sigmoid (s)
}"""


def found(text: str, *integer: str) -> list[tuple[list[str], int, int]]:
    """Nodes, multiply-adds of all kinds and converted elements of each island."""
    return [
        (i.nodes, i.macs.total(), sum(i.borders.values()))
        for i in islands(network(HEADER + text), integer)
    ]


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


def test_a_concatenation_that_float_operators_read_is_a_border() -> None:
    apart = JOINED.replace("[last] t = Conv (p, w_c)", "[last] t = Exp (p)")
    assert found(apart, "left", "right") == [
        (["left"], 16 * 4 * 8, 8 * 16 + 4 * 16), (["right"], 16 * 4 * 8, 8 * 16 + 4 * 16)
    ]  # fmt: skip
    both = JOINED.replace("float[N,8,2,2] y)", "float[N,8,2,2] y, float[N,8,4,4] z)").replace(
        "[float]", "[also] z = Sigmoid (j) [float]"
    )
    ((_, _, converted),) = found(both, "left", "right", "last")
    assert converted == 8 * 16 + 2 * 4 * 16 + 8 * 4  # the operands instead of the concatenation


def test_a_sum_of_codes_that_float_operators_read_is_a_border() -> None:
    """No convolution fuses with the sum, because others read its operands."""
    ((nodes, _, converted),) = found(SUM, "left", "right", "last")
    assert nodes == ["left", "right", "last"]
    assert converted == (8 + 8 + 8 + 8) * 16  # the input, both operands, the last result
    coded = SUM.replace("Conv (r, w_c)", "Conv (s, w_c)").replace(
        "[float] y = Sigmoid (s)", "[next] y = Conv (r, w_c)"
    )
    ((_, _, converted),) = found(coded, "left", "right", "last", "next")
    assert converted == (8 + 8 + 8) * 16  # the input, both results


def test_a_result_of_the_model_behind_pooling_is_a_border() -> None:
    text = JOINED.replace("float[N,8,2,2] y)", "float[N,8,2,2] y, float[N,4,2,2] z)").replace(
        "[cat]", "[out] z = MaxPool <kernel_shape=[2,2], strides=[2,2]> (l) [cat]"
    )
    ((_, _, converted),) = found(text, "left", "right", "last")
    assert converted == 8 * 16 + 4 * 16 + 8 * 4


def test_an_image_of_any_size_makes_an_island_unknown() -> None:
    text = CHAIN.replace("[N,8,4,4]", "[N,8,H,W]")
    assert found(text, "first", "second") == []


def test_the_sizes_of_the_samples_count_where_the_graph_has_none() -> None:
    """As large as in the graph of fixed sizes; elements that a mask fills are computed as well."""
    (fixed,) = islands(network(HEADER + CHAIN), ["first", "second"])
    model = network(HEADER + CHAIN.replace("[N,8,4,4]", "[N,8,H,W]"))
    samples = 5

    def seen(elements: int, excluded: int = 0) -> ValueStatistics:
        counts = np.array([elements * samples - excluded])
        return ValueStatistics(0.0, 1.0, np.array([1], np.uint16), counts, excluded=excluded)

    values = {"x": seen(8 * 16, 10), "h": seen(256), "r": seen(256), "s": seen(8 * 16)}
    (island,) = islands(model, ["first", "second"], Statistics(values, samples, "0"))
    assert island.known and island.macs == fixed.macs and island.results == fixed.results
    assert sorted(island.borders.values()) == sorted(fixed.borders.values())
    for missing in ("x", "h", "s"):
        part = Statistics({k: v for k, v in values.items() if k != missing}, samples, "0")
        assert islands(model, ["first", "second"], part) == []


@pytest.mark.parametrize(
    ("channels", "kind"),
    [((15, 15), "thin_conv"), ((16, 4), "conv"), ((4, 16), "conv"), ((1, 1), "thin_conv")],
)
def test_a_thin_convolution_has_few_channels_on_both_sides(
    channels: tuple[int, int], kind: str
) -> None:
    ins, outs = channels
    text = f"""g (float[N,{ins},4,4] x, float[{outs},{ins},3,3] w) => (float[N,{outs},4,4] y) {{
        [only] h = Conv <pads=[1,1,1,1]> (x, w)
        [float] y = Sigmoid (h)
    }}"""
    (island,) = islands(network(HEADER + text), ["only"])
    assert island.macs == {kind: ins * outs * 9 * 16}


@pytest.mark.parametrize("kind", ["cpu-avx2", "cpu-avx512-vnni"])
def test_an_island_of_thin_convolutions_saves_nothing(kind: str) -> None:
    """As measured of kernels (docs/studies/cpu_speed.md): 3 x 3, 8 to 8 channels."""
    speeds = kernel_speeds(target(kind))
    for pixels in (100, 10_000, 1_000_000):
        thin, wide = (
            Island(
                macs=Counter({name: pixels * c * c * 9}), results=Counter({name: pixels * c}),
                borders={ir.Value(name="x"): 2 * pixels * c},
            )
            for name, c in (("thin_conv", 8), ("conv", 64))
        )  # fmt: skip
        assert thin.saved(speeds) < 0 < wide.saved(speeds)
        assert not pays(thin, speeds)


@given(st.sets(st.sampled_from(["first", "second", "left", "right", "last"])),
       st.sampled_from([CHAIN, RESIDUAL, JOINED, GHOST]))  # fmt: skip
def test_each_convolution_lies_on_one_island(integer: set[str], text: str) -> None:
    names = [node.name for node in network(HEADER + text).graph if node.name in integer]
    listed = [name for nodes, *_ in found(text, *integer) for name in nodes]
    assert sorted(listed) == sorted(map(str, names))


def test_each_kind_of_convolution_counts_for_itself() -> None:
    (island,) = islands(network(HEADER + MOBILE), ["expand", "depthwise", "project"])
    assert island.nodes == ["expand", "depthwise", "project"]
    assert island.macs == {"conv": 2 * 16 * 16 * 8, "depthwise_conv": 16 * 16 * 9}
    assert island.results == {"conv": (16 + 8) * 16, "depthwise_conv": 16 * 16}
    grouped = (
        MOBILE.replace("group=16", "group=8")
        .replace("w_d)", "w_g)")
        .replace("float[16,1,3,3] w_d", "float[16,2,3,3] w_g")
    )
    (island,) = islands(network(HEADER + grouped.replace("(r, w_d", "(r, w_g")), ["depthwise"])
    assert island.macs == {"grouped_conv": 16 * 16 * 9 * 2}


def test_a_sum_behind_a_convolution_is_an_operator_of_its_own_in_integers() -> None:
    (island,) = islands(network(HEADER + RESIDUAL), ["first", "second"])
    assert [(str(node.name), size) for node, size in island.sums.items()] == [("add", 8 * 16)]
    assert not any(island.sums for island in islands(network(HEADER + CHAIN), ["first", "second"]))


@pytest.mark.parametrize(
    ("text", "integer", "between"),
    [
        (MOBILE, ["expand", "depthwise", "project"], {"depthwise"}),
        (MOBILE, ["depthwise", "project"], set()),  # it reads floats
        (MOBILE, ["expand", "depthwise"], set()),  # a float convolution reads it
        (MOBILE.replace("[relu_2] t = Relu", "[silu] t = Swish"),
         ["expand", "depthwise", "project"], set()),
        (GHOST, ["left", "right", "last"], {"right"}),
        (GHOST, ["right", "last"], set()),
        (GHOST, ["left", "right"], set()),  # a float convolution reads the concatenation
    ],
)  # fmt: skip
def test_a_convolution_lies_between_codes(text: str, integer: list[str], between: set[str]) -> None:
    model = network(HEADER + text)
    assert between_codes(model, integer, {"depthwise", "right"}.intersection(integer)) == between


def test_one_of_two_in_a_row_beside_a_float_takes_the_other_with_it() -> None:
    two = MOBILE.replace(
        "[project] s = Conv (t, w_b)", "[second] s = Conv <group=16, pads=[1,1,1,1]> (t, w_d)"
    ).replace("float[N,8,4,4] y", "float[N,16,4,4] y")
    names = ["expand", "depthwise", "second"]
    assert between_codes(network(HEADER + two), names, names[1:]) == set()


FREE = OperatorSpeed(0.0, 0.0)
# a multiply-add saves 1 µs, and a depthwise one loses 2 µs
SPEEDS = KernelSpeeds(
    conv=ConvSpeed(0.0005, 0.001, 0.0, 0.0),
    grouped_conv=ConvSpeed(0.0005, 0.001, 0.0, 0.0),
    depthwise_conv=ConvSpeed(0.0005, 0.00025, 0.0, 0.0),
    product=ProductSpeeds(0.0005, 0.001, 0.0005, 0.0, 0.0, 0.0),
    conversion=FREE,
    sum=FREE,
    source="cpu-avx2",
)


def costing(least: float) -> KernelSpeeds:
    """An island pays from so many multiply-adds per element at its borders."""
    return replace(SPEEDS, conversion=OperatorSpeed(1000 * least / MARGIN, 0.0))


def decide(
    model: ir.Model,
    least: float | None,
    overrides: dict[str, Precision] | None = None,
    depthwise: Literal["between", "nowhere"] = "nowhere",
) -> Assignment:
    kernels = None if least is None else costing(least)
    rules = replace(RULES["cpu"], kernels=kernels, depthwise_conv=depthwise, float_output=False)
    return assign(model, Scheme(INT8, "fp32", {INT8: rules}), None, overrides)


@pytest.mark.parametrize(("least", "planned"), [(None, 2), (2.6, 2), (2.7, 1), (4.1, 0)])
def test_an_island_below_the_least_stays_in_float(least: float | None, planned: int) -> None:
    """`left`: 512 multiplications for 192 elements; `last`: 1024 for 256."""
    model = network(HEADER + GHOST)
    decided = decide(model, least)
    assert len(decided.quantized()) == planned
    if least is not None and planned < 2:
        assert decided.nodes["left"].name == "fp32"
        assert decided.reasons["left"] == (
            "the borders to floats cost more than integers save: "
            f"its island of 1 would save 512 µs in integers and lose {192 * least / 1.5:.0f} µs at "
            "its borders, per sample on one core with the kernels of cpu-avx2; it must save 1.5 "
            "times what it loses"
        )


def test_a_node_that_the_recipe_names_keeps_its_precision() -> None:
    decided = decide(network(HEADER + GHOST), np.inf, {"le*": INT8})
    assert decided.quantized() == {"left": INT8}


def test_a_depthwise_convolution_between_codes_joins_them_if_that_pays() -> None:
    """`left`: 512 multiplications for 192 elements at its borders, `last` 1024 for 256; with the
    depthwise one all three, 1536 - 2 * 576 for 256. Alone `right` costs more than it joins."""
    model = network(HEADER + GHOST)
    decided = decide(model, 1.4, depthwise="between")
    assert set(decided.quantized()) == {"left", "right", "last"}
    decided = decide(model, 1.6, depthwise="between")
    assert set(decided.quantized()) == {"left", "last"}
    assert decided.reasons["right"] == "depthwise: in integers it costs what its neighbours gain"
    decided = decide(model, 2.7, depthwise="between")
    assert set(decided.quantized()) == {"last"}
    assert "its island of 1 would save 512 µs in integers" in decided.reasons["left"]


def test_a_depthwise_convolution_beside_floats_stays_in_float() -> None:
    decided = decide(network(HEADER + MOBILE), None, {"project": PRECISIONS["fp32"]}, "between")
    assert decided.quantized() == {"expand": INT8}
    assert decided.reasons["depthwise"] == "depthwise: beside float operators, float is as fast"
    decided = decide(network(HEADER + MOBILE), None, None, "between")
    assert set(decided.quantized()) == {"expand", "depthwise", "project"}


def test_what_integers_save_and_what_they_cost() -> None:
    """By hand, in milliseconds: 10⁹ multiply-adds in floats take 10 ms and in integers 4 ms."""
    speeds = replace(
        SPEEDS,
        conv=ConvSpeed(100.0, 250.0, 0.1, 0.3),
        conversion=OperatorSpeed(0.5, 20.0),
        sum=OperatorSpeed(0.25, 5.0),
    )
    island = Island()
    island.macs["conv"], island.results["conv"] = 10**9, 10**7
    assert island.saved(speeds) == pytest.approx(10 - 4 + 1 - 3)
    assert island.spent(speeds) == 0
    x, node = ir.Value(name="x"), ir.node("Add", [])
    island.borders, island.sums = {x: 10**6}, {node: 4 * 10**6}
    assert island.spent(speeds) == pytest.approx(0.5 + 0.02 + 1 + 0.005)


@given(st.integers(0, 10**10), st.integers(0, 10**8), st.integers(0, 10**8))
def test_a_larger_border_never_makes_an_island_pay(macs: int, size: int, more: int) -> None:
    def island(converted: int) -> Island:
        value = ir.Value(name="x")
        return Island(macs=Counter(conv=macs), borders={value: converted})

    speeds = costing(50.0)
    assert pays(island(size), speeds) or not pays(island(size + more), speeds)
