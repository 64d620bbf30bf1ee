"""What a plan costs in use: at a load that leaves devices idle, at spot prices, on bought devices;
and the front, the calls that no other one beats in latency and cost.

A copy of the model runs on the `devices` of its row. Rented devices are paid for all the time,
whether they compute or wait. Of a bought device the power is counted at its full draw all the time,
which is an upper bound; its place, its cooling and its host are not counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from optkit.craft.prediction.cost import per_million
from optkit.facts.device_facts import Price
from optkit.facts.documents.plan import (
    CheapestChoice,
    FrontPoint,
    PlannedLatency,
    PlannedLoad,
    PlannedPurchase,
    PlanRow,
)
from optkit.facts.documents.prices import Purchase
from optkit.facts.errors import UsageError
from optkit.ground.devices import Target

MONTH = 730.0
"""Hours."""

SAME = 1.005  # the ratio up to which two figures read the same
STEP = 1.05
"""The front leaves out a call that is not 5 % cheaper than a faster one, or not 5 % faster than a
cheaper one."""


@dataclass(frozen=True)
class Demand:
    """What a service must carry, per second: `peak` at any time; on average `rate`, or `share` of
    the peak (of what the devices can do if no peak is given)."""

    peak: float | None = None
    rate: float | None = None
    share: float | None = None


def demand(load: float | str | None, peak: float | None, request: int) -> Demand:
    """From what a user says of the load: `120/s`, `3req/s` (each of `request` units), `30%`. Raises
    UsageError for a load that is none."""
    if load is None:
        return Demand(peak)
    parts = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+) ?(%|/s|req/s)?", str(load).strip())
    value, unit = (float(parts[1]), parts[2]) if parts else (0.0, None)
    if not 0 < value < inf or (unit == "%" and value > 100):
        raise UsageError(
            f"{load!r} is not a load", where="--load", hint="write it like 120/s, 3req/s or 30%"
        )
    if unit == "%":
        return Demand(peak, share=value / 100)
    rate = value * request if unit == "req/s" else value
    if peak is not None and rate > peak:
        raise UsageError("the average load is above --throughput", where="--load")
    return Demand(peak, rate=rate)


@dataclass(frozen=True)
class Terms:
    """How one target is paid for. `electricity`: dollars per kWh, known wherever `purchase` is."""

    demand: Demand
    price: Price | None
    spot: Price | None = None
    purchase: Purchase | None = None
    electricity: float | None = None


def discounted(price: Price | None, discount: float) -> Price | None:
    """The spot price as the user's discount on the price per hour."""
    if price is None:
        return None
    usd, name = price.usd_per_hour * (1 - discount), f"{price.provider}, {discount:.0%} off"
    return replace(price, usd_per_hour=usd, provider=name)


def costed(row: PlanRow, target: Target, terms: Terms) -> PlanRow:
    """The row with what it costs under these terms."""
    owned = _owned(target, terms)
    latency = tuple(_call(call, row.devices or 1, terms, owned) for call in row.latency)
    return row.model_copy(update={"latency": latency, "spot": terms.spot, "owned": owned})


def _call(
    call: PlannedLatency, devices: int, terms: Terms, owned: PlannedPurchase | None
) -> PlannedLatency:
    load, spot = _load(call, devices, terms, owned), None
    if terms.spot is not None:
        busy = (call.throughput, devices) if load is None else (load.throughput, load.devices)
        spot = per_million(terms.spot.usd_per_hour, *busy)
    return call.model_copy(update={"load": load, "spot_usd_per_million": spot})


def _owned(target: Target, terms: Terms) -> PlannedPurchase | None:
    """None where nothing is bought, or its power is not known."""
    bought = terms.purchase
    watts = None if bought is None else bought.watts or target.tdp_w
    if bought is None or watts is None or terms.electricity is None:
        return None
    saved = 0.0  # dollars per hour
    if terms.price is not None:
        saved = terms.price.usd_per_hour - watts / 1e3 * terms.electricity
    return PlannedPurchase(
        purchase=bought,
        watts=watts,
        usd_per_kwh=terms.electricity,
        break_even_months=bought.usd / saved / MONTH if saved > 0 else None,
    )


def _load(
    call: PlannedLatency, devices: int, terms: Terms, owned: PlannedPurchase | None
) -> PlannedLoad | None:
    """As many copies as the peak needs, or the average load if no peak is given."""
    if terms.demand == Demand():
        return None
    average, copies = _served(terms.demand, call.throughput)
    utilisation = average / (copies * call.throughput)
    hourly = None if terms.price is None else terms.price.usd_per_hour * devices
    slow, fast = (_served(terms.demand, throughput) for throughput in call.throughput_band)
    return PlannedLoad(
        devices=copies * devices,
        throughput=average,
        utilisation=utilisation,
        usd_per_hour=None if hourly is None else hourly * copies,
        usd_per_million=None if hourly is None else per_million(hourly, average, copies),
        usd_band=None
        if hourly is None
        else (per_million(hourly, *fast), per_million(hourly, *slow)),
        break_even_months=None
        if owned is None or owned.break_even_months is None
        else owned.break_even_months / utilisation,
    )


def _served(asked: Demand, throughput: float) -> tuple[float, int]:
    """What copies of that throughput serve per second on average, and how many they are."""
    needed = asked.peak or asked.rate
    copies = 1 if needed is None else ceil(needed / throughput)
    most = asked.peak or copies * throughput
    return asked.rate or most * (asked.share or 1.0), copies


def cost(call: PlannedLatency) -> float | None:
    """Dollars per million: at the load, if one is asked for."""
    return call.usd_per_million if call.load is None else call.load.usd_per_million


def calls(rows: Sequence[PlanRow], baseline: str = "fp16") -> list[tuple[PlanRow, PlannedLatency]]:
    """The calls to choose from: all but those of other precisions that are no better than the
    baseline on as many of the same devices, in what a figure shows."""
    whole = [(row, call) for row in rows for call in row.latency]
    plain = {
        (row.target, row.devices, call.batch): call
        for row, call in whole
        if row.precision == baseline
    }

    def pays(row: PlanRow, call: PlannedLatency) -> bool:
        other = plain.get((row.target, row.devices, call.batch))
        if row.precision == baseline or other is None:
            return True
        usd, of_other = cost(call) or 0.0, cost(other) or 0.0
        return other.p50_ms > call.p50_ms * SAME or of_other > usd * SAME

    return [(row, call) for row, call in whole if pays(row, call)]


def cheapest(rows: Sequence[PlanRow], limit_ms: float | None) -> CheapestChoice | None:
    """The call of the lowest cost within the limit, of several the fastest; None if no call that
    has a price is within it."""
    limit = inf if limit_ms is None else limit_ms
    options = [
        (usd, call.p50_ms, row, call)
        for row, call in calls(rows)
        if call.p50_ms <= limit and (usd := cost(call)) is not None
    ]
    if not options:
        return None
    *_, row, call = min(options, key=lambda option: option[:2])
    assert row.price is not None and row.devices is not None and call.usd_per_million is not None
    devices = row.devices if call.load is None else call.load.devices
    return CheapestChoice(
        target=row.target,
        precision=row.precision,
        batch=call.batch,
        devices=devices,
        usd_per_hour=devices * row.price.usd_per_hour,
        usd_per_million=call.usd_per_million,
        kwh_per_million=call.kwh_per_million,
        p50_ms=call.p50_ms,
        band=call.band,
        throughput=call.throughput * devices / row.devices,
        price=row.price,
        evidence="predicted",
        certain=call.band[1] <= limit,
        load=call.load,
    )


def front(rows: Sequence[PlanRow]) -> list[FrontPoint]:
    """From the fastest to the cheapest, which are both always there."""
    priced = sorted(points(calls(rows)), key=lambda one: (one.p50_ms, one.usd_per_million))
    cheaper: list[FrontPoint] = []
    for point in priced:
        if not cheaper or point.usd_per_million < cheaper[-1].usd_per_million:
            cheaper.append(point)
    kept = cheaper[:1]
    for point in cheaper[1:-1]:
        if point.usd_per_million * STEP < kept[-1].usd_per_million:
            kept.append(point)
    faster = cheaper[1:][-1:]
    for point in reversed(kept[1:]):
        if point.p50_ms * STEP < faster[-1].p50_ms:
            faster.append(point)
    return kept[:1] + faster[::-1]


def points(found: Iterable[tuple[PlanRow, PlannedLatency]]) -> Iterator[FrontPoint]:
    """Those of the calls that have a price."""
    for row, call in found:
        usd, devices, band = cost(call), row.devices or 1, None
        if usd is None:
            continue
        if call.load is not None:
            devices, band = call.load.devices, call.load.usd_band
        low, high = call.throughput_band
        yield FrontPoint(
            target=row.target,
            precision=row.precision,
            batch=call.batch,
            devices=devices,
            p50_ms=call.p50_ms,
            band=call.band,
            usd_per_million=usd,
            usd_band=band or (usd * call.throughput / high, usd * call.throughput / low),
            evidence="predicted",
        )
