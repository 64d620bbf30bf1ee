"""Load, spot, purchase and the front, against figures worked out by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import optkit
from optkit import DecoderSizes
from optkit.craft.prediction.advice import _precisions
from optkit.craft.prediction.economics import Demand, Terms, cheapest, costed, discounted, front
from optkit.facts.device_facts import Price
from optkit.facts.documents.plan import PlannedLatency, PlanRow
from optkit.facts.documents.prices import Purchase
from optkit.facts.errors import Impossible, InputRefused, UsageError
from optkit.ground.devices import target

L4 = target("l4")
RENT = Price(
    usd_per_hour=0.36, provider="mine", as_of="2026-11-01", verified=True, source="prices.yaml"
)
SMALL = DecoderSizes(8e9, 32, 8, 128)


def call(batch: int = 1, ms: float = 10.0, throughput: float = 100.0) -> PlannedLatency:
    return PlannedLatency.model_construct(
        batch=batch, p50_ms=ms, band=(ms / 2, ms * 2), throughput=throughput,
        throughput_band=(throughput / 2, throughput * 2),
        usd_per_million=0.36 / 3600 / throughput * 1e6,
    )  # fmt: skip


def row(*calls: PlannedLatency, devices: int = 1) -> PlanRow:
    return PlanRow.model_construct(
        target="l4", precision="int8", devices=devices, latency=calls, price=RENT
    )


def loaded(demand: Demand, devices: int = 1, **terms: Any) -> Any:
    made = costed(row(call(), devices=devices), L4, Terms(demand, RENT, **terms))
    return made.latency[0]


@pytest.mark.parametrize(
    ("demand", "devices", "average", "utilisation", "usd", "band"),
    [
        (Demand(peak=250.0), 3, 250.0, 250 / 300, 1.2, (0.8, 2.0)),
        (Demand(peak=250.0, share=0.2), 3, 50.0, 50 / 300, 6.0, (4.0, 10.0)),
        (Demand(peak=250.0, rate=50.0), 3, 50.0, 50 / 300, 6.0, (4.0, 10.0)),
        (Demand(rate=80.0), 1, 80.0, 0.8, 1.25, (1.25, 2.5)),
        (Demand(share=0.25), 1, 25.0, 0.25, 4.0, (2.0, 8.0)),
    ],
)  # fmt: skip
def test_a_load_takes_whole_devices(
    demand: Demand, devices: int, average: float, utilisation: float, usd: float,
    band: tuple[float, float],
) -> None:  # fmt: skip
    """A device of 0.36 $/h costs 1e-4 $/s: at 100/s always busy a dollar a million."""
    load = loaded(demand).load
    assert load is not None and load.devices == devices
    assert (load.throughput, load.utilisation) == pytest.approx((average, utilisation))
    assert load.usd_per_million == pytest.approx(usd)
    assert load.usd_band == pytest.approx(band)
    assert load.usd_per_hour == pytest.approx(0.36 * devices)


def test_copies_of_several_devices() -> None:
    load = loaded(Demand(peak=250.0), devices=2).load
    assert (load.devices, load.usd_per_hour) == (6, pytest.approx(0.36 * 6))


def test_a_request_is_the_tokens_that_it_writes() -> None:
    found = optkit.plan(
        target="l4", precision="fp8", decoder=SMALL, new_tokens=100, prompt=10, load="3req/s"
    )
    assert found["asked"]["load_per_s"] == 300
    assert found["results"][0]["latency"][0]["load"]["throughput"] == 300


def test_spot_is_a_second_price() -> None:
    spot = discounted(RENT, 0.6)
    assert spot is not None and spot.usd_per_hour == pytest.approx(0.144)
    assert spot.provider == "mine, 60% off" and discounted(None, 0.6) is None
    assert loaded(Demand(), spot=spot).spot_usd_per_million == pytest.approx(0.4)
    assert loaded(Demand(peak=250.0), spot=spot).spot_usd_per_million == pytest.approx(1.2 * 0.4)
    assert loaded(Demand()).spot_usd_per_million is None


def test_a_bought_device_pays_for_itself() -> None:
    """0.36 $/h less 100 W at 0.6 $/kWh are 0.30 $/h: 2,190 $ are 7,300 hours, ten months of 730;
    forty where a rented one would be paid for a quarter of the time."""
    bought = Purchase(usd=2190.0, watts=100.0, provider="shop", as_of="2026-11-01", source="p")
    terms = Terms(Demand(share=0.25), RENT, purchase=bought, electricity=0.6)
    made = costed(row(call()), L4, terms)
    assert made.owned is not None
    assert made.owned.break_even_months == pytest.approx(10)
    assert made.latency[0].load is not None
    assert made.latency[0].load.break_even_months == pytest.approx(40)
    never = costed(row(call()), L4, Terms(Demand(), RENT, None, bought, electricity=4.0)).owned
    assert never is not None and never.break_even_months is None
    board = bought.model_copy(update={"watts": None})
    assert costed(row(), L4, Terms(Demand(), RENT, None, board, 0.2)).owned.watts == 72  # type: ignore[union-attr]


def test_the_front_is_neither_slower_nor_dearer() -> None:
    """At 0.36 $/h. The third is slower and dearer than the second; the last but one is cheaper than
    the second by 3 %; the last is the cheapest."""
    calls = (call(1, 1.0, 50.0), call(2, 2.0, 100.0), call(3, 3.0, 90.0), call(4, 4.0, 103.0),
             call(5, 5.0, 104.0))  # fmt: skip
    found = front([row(*calls)])
    assert [point.batch for point in found] == [1, 2, 5]
    assert found[1].usd_per_million == pytest.approx(1)
    assert found[1].usd_band == pytest.approx((0.5, 2))
    assert front([]) == []


def test_the_front_leaves_out_small_steps() -> None:
    """From 1.00 ms to 1.02 and 1.04 ms at half the cost each: the fastest stays as an end, and of
    the two others the cheaper one, which is 2 % slower."""
    calls = (call(1, 1.0, 50.0), call(2, 1.02, 100.0), call(4, 1.04, 200.0), call(8, 2.0, 400.0))
    assert [point.batch for point in front([row(*calls)])] == [1, 4, 8]
    assert [point.batch for point in front([row(calls[0])])] == [1]
    assert [point.batch for point in front([row(*calls[:2])])] == [1, 2]


@pytest.mark.parametrize(("ms", "chosen"), [(9.99, "fp16"), (9.9, "int8"), (10.01, "fp16")])
def test_a_precision_that_gains_nothing_that_a_figure_shows_is_not_chosen(
    ms: float, chosen: str
) -> None:
    """Throughput and cost follow the time."""
    plain = row(call(4)).model_copy(update={"precision": "fp16"})
    rows = [row(call(4, ms, 1000 / ms)), plain]
    best = cheapest(rows, None)
    assert best is not None and best.precision == chosen
    assert [point.precision for point in front(rows)] == [chosen]
    (told,) = _precisions(rows, "fp16")
    assert f"fastest is {chosen} at batch 4" in told and "1.00x" not in told
    other_batch = [row(call(8, 9.99, 200.0)), plain]
    assert cheapest(other_batch, None).precision == "int8"  # type: ignore[union-attr]


def test_the_front_of_a_plan() -> None:
    found = optkit.plan(target=("l4", "h100", "gb200"), precision=("fp16", "fp8"), decoder=SMALL)
    points = found["front"]
    assert "gb200" not in {point["target"] for point in points}  # it has no price
    for one, other in pairwise(points):
        assert one["p50_ms"] <= other["p50_ms"]
        assert one["usd_per_million"] > other["usd_per_million"]
    assert points[-1]["usd_per_million"] == found["cheapest"]["usd_per_million"]


def test_every_gpu_in_the_precisions_that_it_has() -> None:
    found = optkit.plan(target="all", precision=("fp16", "fp8"), decoder=SMALL, batches=(1,))
    pairs = {(row["target"], row["precision"]) for row in found["results"]}
    assert {("t4", "fp16"), ("l4", "fp8"), ("mi300x", "fp16")} <= pairs
    assert ("t4", "fp8") not in pairs and not any("cpu" in name for name, _ in pairs)
    assert found["status"] == "ok" and len(found["front"]) > 1
    with pytest.raises(Impossible, match="ONNX Runtime"):
        optkit.plan(target="all", precision="nf4", decoder=SMALL)


def test_the_recommendation_names_both_ends() -> None:
    found = optkit.plan(target=("l4", "h100"), precision="fp8", decoder=SMALL, latency_ms=30.0)
    first, best = found["front"][0], found["cheapest"]
    advice = found["recommendation"]
    assert advice["ship"] == "unknown" and advice["evidence"] == ["predicted"]
    fastest, cheapest = advice["sentence"].split("Cheapest within 30 ms: ")
    assert fastest.startswith("Fastest within 30 ms: FP8 on NVIDIA H100 SXM5 80GB")
    assert f"{first['p50_ms']:.3g} ms per token at batch 1" in fastest
    assert f"${best['usd_per_million']:.3g} per million tokens" in cheapest
    none = optkit.plan(target="l4", precision="fp8", decoder=SMALL, latency_ms=1.0)
    assert none["recommendation"]["ship"] == "none" and none["cheapest"] is None
    assert none["recommendation"]["sentence"].startswith("Nothing meets 1 ms: the shortest takes ")
    without = optkit.plan(target="gb200", precision="fp8", decoder=SMALL)
    assert (
        without["recommendation"]["sentence"]
        .partition(" Not measured")[0]
        .endswith("price unknown.")
    )
    assert "no device of its generation" in without["recommendation"]["conditions"][0]


def test_a_limit_inside_the_interval_is_reported() -> None:
    free = optkit.plan(target="l4", precision="fp8", decoder=SMALL, batches=(1,))
    ms = free["results"][0]["latency"][0]["p50_ms"]
    close = optkit.plan(target="l4", precision="fp8", decoder=SMALL, latency_ms=ms * 1.01)
    assert close["recommendation"]["ship"] == "unknown"
    assert close["recommendation"]["sentence"].endswith(
        "Measure before you decide: an interval ends above the limit."
    )
    missed = optkit.plan(target="l4", precision="fp8", decoder=SMALL, latency_ms=ms * 0.95)
    assert missed["recommendation"]["ship"] == "unknown"  # the interval holds the limit
    assert missed["recommendation"]["sentence"].startswith("Nothing is predicted to meet ")
    assert "above the limit of" in close["recommendation"]["conditions"][0]


def test_what_the_host_delivers(tmp_path: Path) -> None:
    """A sequence of 1,024 tokens of 8 bytes, every 256 written tokens."""
    for index, size in enumerate((1000, 3000)):
        (tmp_path / f"{index}.txt").write_bytes(b"x" * size)
    found = optkit.plan(target="l4", precision="fp8", decoder=SMALL, stored=tmp_path)
    one = found["results"][0]["latency"][0]
    feed, rate = one["feed"], one["throughput"] / 256
    assert feed["samples_per_s"] == pytest.approx(rate)
    assert feed["to_device_mb_per_s"] == pytest.approx(rate * 1024 * 8 / 1e6)
    assert feed["storage_mb_per_s"] == pytest.approx(rate * 2000 / 1e6)
    assert feed["core_ms_per_sample"] == pytest.approx(1e3 / rate)
    assert feed["link_mb_per_s"] == 32_000
    with pytest.raises(InputRefused, match="no files"):
        optkit.plan(target="l4", decoder=SMALL, stored=tmp_path / "nothing")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"load": "soon"}, "'soon' is not a load"),
        ({"load": "130%"}, "'130%' is not a load"),
        ({"load": "1.2.3"}, "is not a load"),
        ({"load": 0}, "is not a load"),
        ({"load": 200, "throughput": 100.0}, "above --throughput"),
        ({"spot": 60.0}, "a discount is"),
        ({"electricity": -1.0}, "above 0"),
        ({"stored": 0}, "above 0"),
    ],
)
def test_wrong_questions(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        optkit.plan(target="l4", decoder=SMALL, **more)


def test_a_purchase_needs_the_price_of_power(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("l4: {purchase_usd: 2600, provider: shop, as_of: 2026-11-01}\n")
    with pytest.raises(UsageError, match="price of its power"):
        optkit.plan(target="l4", decoder=SMALL, prices=prices)
    found = optkit.plan(
        target="l4", precision="fp8", decoder=SMALL, prices=prices, electricity=0.2
    )["results"][0]
    assert found["price"]["usd_per_hour"] == 0.8048  # of the target's own file
    hours = 2600 / (0.8048 - 0.072 * 0.2)
    assert found["owned"]["break_even_months"] == pytest.approx(hours / 730)
