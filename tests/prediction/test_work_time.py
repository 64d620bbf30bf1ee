"""The fitted roofline against figures worked out by hand, and what must hold of any prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.work import Work, gemm, total
from optkit.craft.prediction.work_time import Efficiencies, link_of, of_each, seconds
from optkit.facts.device_facts import Fact
from optkit.facts.errors import ToolchainMissing
from optkit.ground.devices import Target, target

IDEAL = Efficiencies(1, 1, 1, 1, 1, 0, 0, 0)
LARGE = st.floats(1, 1e15)


def without(device: Target, *names: str, **facts: float) -> Target:
    """The device without these facts, and with those of other values."""
    kept = {name: fact for name, fact in device.facts.items() if name not in names}
    given = {name: Fact(value, "TEST", True) for name, value in facts.items()}
    return replace(device, facts={**kept, **given})


def test_what_is_read_again_comes_from_the_cache() -> None:
    """32 bytes per multiprocessor and clock."""
    l4 = target("l4")
    once = Work("attention", "fp16", streamed=1e9)
    again = replace(once, reread=1e9)
    first, second = (of_each([work], l4, fitted().efficiencies)[0] for work in (once, again))
    assert second.memory - first.memory == pytest.approx(1e9 / (58 * 2.04e9 * 32))


def test_a_streaming_product_by_hand() -> None:
    """Without an L2 cache, at full efficiency: bytes over bandwidth, operations over peak."""
    l4 = without(target("l4"), "l2_mb", "tdp_w")
    work = Work("gemm", "fp16", operations=121e12, weight_bytes=300e9)
    found = seconds([work], l4, IDEAL)
    assert (found.compute, found.memory, found.total) == pytest.approx((1, 1, 1))
    assert seconds([work], l4, replace(IDEAL, overlap=0.0)).total == pytest.approx(2)
    assert seconds([work], l4, replace(IDEAL, memory=0.5)).total == pytest.approx(2)


@pytest.mark.parametrize(
    ("kind", "tflops"), [("attention", 330.3), ("conv", 330.3), ("gemm", 165.2)]
)
def test_attention_and_convolutions_add_up_in_fp16(kind: Any, tflops: float) -> None:
    """GeForce does so at twice the rate: 330.3 and 165.2 TFLOP/s of an RTX 4090."""
    device = without(target("rtx4090"), "tdp_w")
    work = Work(kind, "fp16", operations=tflops * 1e12)
    assert seconds([work], device, IDEAL).compute == pytest.approx(1, rel=1e-3)


def test_launches_cost_cycles_and_unpacking_costs_lanes() -> None:
    l4 = target("l4")  # 58 SMs of 128 lanes at 2.04 GHz
    launch = Work("elementwise", "fp16", kernels=3, times=2)
    assert seconds([launch], l4, replace(IDEAL, kernel_cycles=2040)).total == pytest.approx(6e-6)
    eff = replace(IDEAL, unpack_cycles=2)
    one, eight, many = (
        seconds([replace(launch, kernels=0, times=1, unpacked=58e9, rows=rows)], l4, eff).unpack
        for rows in (1, 8, 800)
    )
    assert one == pytest.approx(58e9 * 2 / (58 * 64 * 2.04e9))
    assert (eight, many) == pytest.approx((8 * one, 8 * one))


def test_little_power_holds_the_peak_down() -> None:
    """72 W hold the 87 TFLOP/s that the board was seen to sustain, of 121."""
    work = Work("gemm", "fp16", operations=87e12)
    assert seconds([work], target("l4"), IDEAL).compute == pytest.approx(1, rel=0.01)
    assert seconds([work], target("l4"), IDEAL, watts=36).compute == pytest.approx(2, rel=0.01)
    sxm = seconds([replace(work, operations=989.4e12)], target("h100-sxm"), IDEAL)
    assert sxm.compute == pytest.approx(1, rel=0.01)


def test_geforce_adds_up_in_fp16_at_twice_its_peak() -> None:
    """Convolutions at the FP16-accumulate rate, products at the peak, which is half of it."""
    card = without(target("rtx4090"), "tdp_w")
    product, convolution = (
        seconds([Work(kind, "fp16", operations=330.3e12)], card, IDEAL).compute
        for kind in ("gemm", "conv")
    )
    assert product == pytest.approx(2, rel=1e-3)
    assert convolution == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("name", ["rtx3090", "rtx4090", "rtx5090"])
def test_geforce_peaks_are_those_with_fp32_accumulate(name: str) -> None:
    """FP16 half of the FP16-accumulate rate, INT8 four times FP16, FP8 twice FP16."""
    card = target(name)
    fp16, int8 = card.peak("fp16"), card.peak("int8")
    assert fp16 is not None and int8 is not None
    assert float(card.facts["fp16_acc16_tflops"].value or 0) * 1e12 == pytest.approx(
        2 * fp16, rel=0.01
    )
    assert int8 == pytest.approx(4 * fp16, rel=0.01)
    if card.supports("fp8"):
        assert card.peak("fp8") == pytest.approx(2 * fp16, rel=0.01)


def test_nvlink_joins_as_many_as_its_bridge_or_switch() -> None:
    pcie, sxm = target("h100-pcie"), target("h100-sxm")
    for device, devices, name, rate in (
        (pcie, 2, "NVLink", 300e9), (pcie, 4, "PCIe", 64e9),
        (sxm, 8, "NVLink", 450e9), (sxm, 16, "PCIe", 64e9),
        (target("l4"), 2, "PCIe", 32e9), (target("gb200"), 72, "NVLink", 900e9),
    ):  # fmt: skip
        found = link_of(device, devices)
        assert (found.name, found.rate) == (name, rate)
        work = Work("elementwise", "fp16", linked=rate, devices=devices, kernels=0)
        assert seconds([work], device, IDEAL).link == pytest.approx(1)
    with pytest.raises(ToolchainMissing, match="no link"):
        link_of(without(target("l4"), "pcie_gbs"), 2)


def test_what_fits_into_l2_costs_less() -> None:
    work = Work("elementwise", "fp16", moved=10e6)
    with_l2 = seconds([work], target("l4"), fitted().efficiencies).memory
    without_l2 = seconds([work], without(target("l4"), "l2_mb"), fitted().efficiencies).memory
    assert with_l2 < 0.5 * without_l2


def test_unknown_figures_are_reported() -> None:
    with pytest.raises(ToolchainMissing, match="no peak"):
        seconds([Work("gemm", "fp8", operations=1)], target("t4"), IDEAL)
    with pytest.raises(ToolchainMissing, match="bandwidth"):
        seconds([], without(target("t4"), "bandwidth_gbs"), IDEAL)


@given(LARGE, LARGE, LARGE, st.sampled_from(["l4", "h100-sxm", "rtx3090", "b200"]))
def test_never_faster_than_the_roofline(
    operations: float, weights: float, moved: float, name: str
) -> None:
    device = target(name)
    work = Work("gemm", "fp16", operations, weights, moved, streamed=moved, rows=128, columns=64)
    found = seconds([work], device, fitted().efficiencies)
    assert found.total >= operations / (device.peak("fp16") or 0)
    assert found.total >= moved / (device.bandwidth or 0)  # what is streamed is never in L2
    parts = (found.compute, found.memory, found.unpack, found.launch, found.link)
    assert max(parts) <= found.total * (1 + 1e-9) and found.total <= sum(parts) * (1 + 1e-9)


@given(LARGE, st.floats(1, 100), st.integers(1, 9))
def test_more_work_takes_no_less(size: float, factor: float, times: int) -> None:
    def taken(amount: float, n: int = 1) -> float:
        work = Work("conv", "int8", amount, amount, amount, times=n)
        return seconds([work], target("l4"), fitted().efficiencies).total

    assert taken(size * factor) >= taken(size) * (1 - 1e-9)
    assert taken(size, times) >= taken(size) * (1 - 1e-9)


def test_a_product_is_counted_as_it_is_defined() -> None:
    work = gemm(8, 1024, 4096, dtype="int8", weight_bits=8, times=3)
    assert work.operations == 2 * 8 * 1024 * 4096
    assert work.weight_bytes == 1024 * 4096
    assert work.moved == 8 * 1024 + 2 * 8 * 4096  # read in INT8, written in FP16
    assert total([work]).operations == 3 * work.operations


def test_intervals_hold_the_value_and_follow_the_category() -> None:
    fit = fitted()
    low, high = fit.band("decode", 10.0)
    assert low < 10 < high and high / 10 == pytest.approx(10 / low)
    assert fit.band("unheard of", 1.0).high == fit.widths["all"]


def test_a_generation_has_factors_of_its_own() -> None:
    """Of the efficiency of products, and of the cycles of a launch; those of another are not read.
    Whatever the factor, no product exceeds the peak."""
    l4 = without(target("l4"), "l2_mb", "tdp_w")
    work = Work("gemm", "int8", operations=242.5e12)
    slow = replace(IDEAL, gemm=0.5, kernel_cycles=2040, own={"gemm int8 8.9": 0.5,
                   "launch 8.9": 3.0, "gemm int8 9.0": 9.0, "gemm fp8 8.9": 9.0})  # fmt: skip
    found = seconds([work], l4, slow)
    assert found.compute == pytest.approx(4) and found.launch == pytest.approx(3e-6)
    fast = replace(slow, own={"gemm int8 8.9": 9.0})
    assert seconds([work], l4, fast).compute == pytest.approx(1)


def test_few_measurements_are_told() -> None:
    fit = fitted()
    assert fit.doubts("encoder") == () == fit.doubts("decode")
    (gain,) = fit.doubts("convolution")
    assert "of the gain" in gain and f"({fit.few['ratio convolution']} of" in gain
    assert all(fit.widths[name] >= fit.widths["all"] for name in ("prefill", "serving"))
    low, high = fit.ratio_band("unheard of", 2.0)
    assert high == pytest.approx(2 * fit.widths["ratio"]) and low * high == pytest.approx(4)


def test_a_last_wave_that_runs_half_empty_costs() -> None:
    """An L4 has 58 SMs and a tile 128 rows and 64 columns: one tile more is a wave more."""
    l4 = without(target("l4"), "tdp_w")

    def busy(tiles: int) -> float:
        work = Work("gemm", "fp16", operations=1e12 * tiles, rows=128, columns=64 * tiles)
        return 1e12 * tiles / 121e12 / seconds([work], l4, IDEAL).compute

    assert busy(58) == busy(116) == pytest.approx(1)
    assert busy(59) == pytest.approx((1 + 59 / 116) / 2)
    assert busy(1) == pytest.approx((1 / 58) ** 0.5)  # split along its inner axis
