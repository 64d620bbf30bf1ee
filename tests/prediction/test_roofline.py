"""Roofline bounds against figures worked out by hand, and the properties of any bound."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.devices import target
from optkit.engines import FusedLayer, LayerTensor
from optkit.errors import OptkitError, ToolchainMissing
from optkit.evidence import Evidence
from optkit.node_cost import NodeCost
from optkit.prediction import roofline


def device(bandwidth: float | None = 1e9, **peaks: float) -> Any:
    return SimpleNamespace(name="toy", bandwidth=bandwidth, peak=peaks.get)


def layer(
    size: int, dtype: str | None = None, nodes: tuple[str, ...] = (), weights: int = 0
) -> FusedLayer:
    """A layer that reads `size` bytes and writes as many."""
    value = LayerTensor("v", (size,), "int8")
    constants = (LayerTensor("w", (weights,), "int8"),)
    return FusedLayer("l", "gemm", (value,), constants, (value,), nodes, nodes, dtype)


def cost(macs: int, inputs: int = 0, weights: int = 0, outputs: int = 0, op: str = "MatMul") -> Any:
    return NodeCost(op, macs, weights, inputs, outputs)


def test_by_hand() -> None:
    # a: 2·5e6 operations at 1e10/s = 1 ms against (2·1e5 + 3e5) bytes at 1e9/s = 0.5 ms
    # b: no product, 2·1e6 bytes = 2 ms
    layers = [layer(100_000, "int8", ("a",), weights=300_000), layer(1_000_000)]
    found = roofline.predict(layers, {"a": cost(5_000_000)}, device(int8=1e10), 8)
    assert found.evidence is Evidence.PREDICTED
    assert found.p50_ms == pytest.approx(3.0)
    assert found.band == pytest.approx((3.0, 3.5))
    assert found.throughput == pytest.approx(8 / 3e-3)
    assert found.batch == 8 and "bound" in (found.note or "")


def test_each_layer_has_the_peak_of_what_it_multiplies_in() -> None:
    costs = {"a": cost(10**9), "b": cost(10**9)}
    l4 = target("l4")
    for dtype, peak in (("float32", 30.3e12), ("float16", 121e12), ("uint8", 242.5e12)):
        found = roofline.predict([layer(1, dtype, ("a", "b"))], costs, l4, 1)
        assert found.p50_ms == pytest.approx(4e9 / peak * 1e3)


sizes = st.integers(0, 10**9)
rows = st.lists(
    st.tuples(sizes, sizes, sizes, st.sampled_from(["int8", "float16", None])), max_size=6
)


@given(rows, st.floats(1e6, 1e15), st.floats(1e6, 1e15))
def test_the_sides_enclose_and_follow_the_device(
    rows: list[tuple[int, int, int, str | None]], peak: float, bandwidth: float
) -> None:
    layers = [
        layer(size, dtype, (str(i),) if dtype else (), weights)
        for i, (_, size, weights, dtype) in enumerate(rows)
    ]
    costs = {str(i): cost(row[0]) for i, row in enumerate(rows)}

    def bound(some: list[FusedLayer], faster: float = 1.0) -> Any:
        toy = device(bandwidth * faster, int8=peak * faster, fp16=peak * faster)
        return roofline.predict(some, costs, toy, 1)

    found = bound(layers)
    assert found.band.low == found.p50_ms <= found.band.high <= 2 * found.p50_ms * (1 + 1e-9)
    assert bound(layers, 2.0).p50_ms == pytest.approx(found.p50_ms / 2)
    parts = [bound([part]).p50_ms for part in layers]
    assert found.p50_ms == pytest.approx(sum(parts))


def test_a_dynamic_layer_has_no_bound() -> None:
    open_ended = replace(layer(1), inputs=(LayerTensor("x", (-1, 4), "int8"),))
    with pytest.raises(OptkitError, match="dynamic"):
        roofline.predict([open_ended], {}, device(), 1)


def test_an_unknown_rate_is_told() -> None:
    with pytest.raises(ToolchainMissing, match="int8"):
        roofline.predict([layer(1, "int8", ("a",))], {"a": cost(1)}, device(), 1)
    with pytest.raises(ToolchainMissing, match="bandwidth"):
        roofline.predict([layer(1)], {}, device(None), 1)


def test_an_unfused_graph_by_hand() -> None:
    costs = {
        "fc": cost(1_000_000, inputs=1_000, weights=2_000, outputs=1_000),
        "q": cost(0, inputs=9_000, outputs=9_000, op="QuantizeLinear"),
        "gelu": cost(0, inputs=1_000, outputs=1_000, op="Gelu"),
    }
    toy = device(1e9, fp16=1e12, int8=2e12)
    # float16: 2 µs of compute under 4 µs of bytes; the Gelu by itself another 2 µs
    found = roofline.for_graph(costs, toy, 4, border=0)
    assert found.p50_ms == pytest.approx(4e-3)
    assert found.band == pytest.approx((4e-3, 8e-3))
    # int8: half the compute, half the bytes of the operands
    found = roofline.for_graph(costs, toy, 4, {"fc": "int8"}, border=0)
    assert found.p50_ms == pytest.approx(2.5e-3)
    assert found.band == pytest.approx((2.5e-3, 5.5e-3))
    assert found.evidence is Evidence.PREDICTED


@pytest.mark.parametrize(
    ("precision", "peak", "inputs", "weights"),
    [
        ("int8", 2e12, 500, 1_000),
        ("fp8", 3e12, 500, 1_000),
        ("nvfp4", 4e12, 250, 2_000 * 4.5 / 16),  # a scale of 8 bits for 16 numbers
        ("int8-weight-only", 1e12, 1_000, 1_000),
        ("int4", 1e12, 1_000, 2_000 * 4.5 / 16),  # a scale of 16 bits for 32 numbers
    ],
)
def test_weights_alone_save_bytes_and_no_operations(
    precision: str, peak: float, inputs: float, weights: float
) -> None:
    costs = {"fc": cost(1_000_000, inputs=1_000, weights=2_000, outputs=1_000)}
    toy = device(1e12, fp16=1e12, int8=2e12, fp8=3e12, fp4=4e12)
    found = roofline.for_graph(costs, toy, 1, {"fc": precision}, border=0)
    operations, moved = 2e6 / peak * 1e3, (inputs + weights + 1_000) / 1e12 * 1e3
    assert found.band == pytest.approx((max(operations, moved), operations + moved))


def test_a_mixed_assignment_adds_up() -> None:
    costs = {name: cost(10**6, 10, 10, 10) for name in ("a", "b", "c")}
    toy = device(1e15, fp16=1e12, fp8=2e12)
    found = roofline.for_graph(costs, toy, 1, {"a": "fp8", "b": "int4"}, border=0)
    assert found.p50_ms == pytest.approx((1 + 2 + 2) * 1e-3)


def test_inputs_and_outputs_are_moved_whatever_is_between() -> None:
    relu = {"relu": cost(0, inputs=1_000, outputs=1_000, op="Relu")}
    cast = {"cast": cost(0, inputs=1_000, outputs=500, op="Cast")}
    toy = device(1e9, fp16=1e12)
    for costs, border, high in ((relu, 2_000, 2e-3), (cast, 1_500, 1.5e-3), (relu, 500, 2e-3)):
        found = roofline.for_graph(costs, toy, 4, border=border)
        assert found.p50_ms == pytest.approx(border / 1e9 * 1e3)
        assert found.band == pytest.approx((found.p50_ms, high))
        assert found.throughput == pytest.approx(4e3 / found.p50_ms)


def test_unknown_sizes_count_as_nothing() -> None:
    costs = {"top": NodeCost("TopK", None, 0, None, None), "fc": cost(10, 1, 1, 1)}
    known = {"fc": costs["fc"]}
    toy = device(1e9, fp16=1e12)
    found, expected = (roofline.for_graph(one, toy, 1, border=0) for one in (costs, known))
    assert found == expected


def test_what_loops_or_branches_hide_is_told() -> None:
    costs = {"rnn": NodeCost("LSTM", 0, 0, 1, 1), "fc": cost(10, 1, 1, 1)}
    toy = device(1e9, fp16=1e12)
    for found in (
        roofline.for_graph(costs, toy, 1, border=0),
        roofline.predict([layer(1, "float16", ("fc", "in the loop's body"))], costs, toy, 1),
    ):
        assert "the inside of LSTM is not fully counted" in (found.note or "")
