"""A call with its interval, the bound below it, and the gain of one precision over another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.prediction.call import call, latency, speedup
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.lower_bound import at_least
from optkit.craft.prediction.work import Work, gemm
from optkit.facts.errors import ToolchainMissing
from optkit.facts.evidence import Evidence
from optkit.ground.devices import names, target

L4 = target("l4")
PRODUCT = gemm(4096, 4096, 4096, dtype="fp16", weight_bits=16)
PREDICTABLE = [n for n in names() if target(n).bandwidth and target(n).peak("fp16")
               and target(n).vendor == "nvidia"]  # fmt: skip


def test_the_bound_by_hand() -> None:
    """Operations at the peak; bytes beyond what the L2 cache could hold at the bandwidth."""
    assert at_least([PRODUCT], L4) == pytest.approx(2 * 4096**3 / 121e12)
    cache, bandwidth = float(L4.l2_bytes or 0), float(L4.bandwidth or 0)
    copied = Work("elementwise", "fp16", moved=cache + 3e9, times=2)
    assert at_least([copied], L4) == pytest.approx(2 * 3e9 / bandwidth)
    assert at_least([replace(copied, moved=cache)], L4) == 0


def test_unknown_figures_are_named() -> None:
    with pytest.raises(ToolchainMissing, match="bandwidth"):
        at_least([PRODUCT], replace(L4, facts={}))
    with pytest.raises(ToolchainMissing, match="fp16"):
        at_least([PRODUCT], replace(L4, peaks={}))


sizes = st.floats(0, 1e10)
works = st.builds(
    Work, kind=st.sampled_from(["gemm", "conv", "attention"]), dtype=st.just("fp16"),
    operations=sizes, weight_bytes=sizes, moved=sizes, streamed=sizes, times=st.integers(1, 9),
    rows=st.floats(1, 1e5), columns=st.floats(1, 1e5),
)  # fmt: skip


@given(st.lists(works, min_size=1, max_size=4), st.sampled_from(PREDICTABLE), st.floats(0, 1e9))
def test_no_prediction_is_below_the_bound(some: list[Work], name: str, passed: float) -> None:
    one = call(some, target(name), 8, passed)
    assert one.least <= one.time.total * (1 + 1e-9)
    assert one.interval.low <= one.total <= one.interval.high
    slow, fast = one.throughput_interval
    assert slow <= one.throughput <= fast


def test_copies_add_to_a_call_and_run_beside_many() -> None:
    rate = float(L4.facts["pcie_gbs"].value or 0) * 1e9 * 0.8
    alone, fed = call([PRODUCT], L4, 8, 0), call([PRODUCT], L4, 8, rate * 1e-3)
    assert fed.total == pytest.approx(alone.total + 1e-3)
    assert fed.throughput == pytest.approx(alone.throughput)
    starved = call([PRODUCT], L4, 8, rate)
    assert starved.throughput == pytest.approx(8)


def test_what_no_measurement_covers_has_a_wider_interval() -> None:
    widths = fitted().widths
    seen = call([PRODUCT], L4, 8, 0)
    assert seen.kind == "encoder" and seen.interval.high == pytest.approx(
        widths["encoder"] * seen.total
    )
    blackwell = next(target(n) for n in PREDICTABLE if target(n).compute_capability == "10.0")
    for unseen in (call([PRODUCT], blackwell, 8, 0), call([PRODUCT], L4, 8, 0, known=False)):
        assert unseen.kind == "unseen"
        assert unseen.interval.high == pytest.approx(widths["unseen"] * unseen.total)


def test_the_record_of_a_build() -> None:
    one = call([PRODUCT], L4, 8, 0)
    found = latency(one, "from the graph")
    assert found.evidence is Evidence.PREDICTED and found.note == "from the graph"
    assert found.p50_ms == pytest.approx(one.total * 1e3)
    assert found.at_least_ms == pytest.approx(one.least * 1e3)
    assert found.band == pytest.approx((one.interval.low * 1e3, one.interval.high * 1e3))


def test_a_gain_is_surer_than_its_two_latencies() -> None:
    narrow = gemm(4096, 4096, 4096, dtype="int8", weight_bits=8)
    before, after = (latency(call([work], L4, 8, 0), "") for work in (PRODUCT, narrow))
    gain = speedup(before, after, "encoder")
    assert gain.value == pytest.approx(before.p50_ms / after.p50_ms)
    assert gain.ci95 is not None and before.band is not None and after.band is not None
    assert gain.ci95.high < before.band.high / after.band.low
    unseen = speedup(before, after, "unseen")
    assert unseen.ci95 is not None and unseen.ci95.high > gain.ci95.high
    widths = fitted().widths
    assert gain.ci95.high == pytest.approx(widths["ratio encoder"] * gain.value)
    assert unseen.ci95.high == pytest.approx(widths["ratio unseen"] * gain.value)
