"""A plan as one HTML page, or only its drawings, and its sentences about host and purchase.

The page shows an object of optkit.plan/v1 with at least one row of figures (documents/plan.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from optkit.craft.prediction.economics import cost
from optkit.facts.documents.plan import Plan, PlannedFeed, PlannedLatency, PlannedLoad, PlanRow
from optkit.show.report import figures
from optkit.show.report.details import price
from optkit.show.report.drawing.front import front, name
from optkit.show.report.drawing.roofline import roofline
from optkit.show.report.html import render
from optkit.show.report.view import Headline

BATCHES = (1, 8, 64)
"""Of the tables, where none is named."""


def shown(row: PlanRow, batches: Sequence[int]) -> Sequence[PlannedLatency]:
    """The batches to show; if no device can hold any of them, the largest batch that fits."""
    return [call for call in row.latency if call.batch in batches] or row.latency[-1:]


def several(devices: int | None, target: str) -> str:
    """`4 × l4`; one device is its name alone."""
    return target if devices in (None, 1) else f"{devices} × {target}"


def feeds(rows: Sequence[PlanRow], batches: Sequence[int]) -> Iterator[str]:
    """What the host must deliver to the call of a target that takes the most samples. Tokens alone
    are no load for a host: nothing is said of a decoder, unless the size of its samples is known.
    """
    calls = [(row, call, call.feed) for row in rows for call in shown(row, batches) if call.feed]
    if calls:
        row, call, feed = max(calls, key=lambda one: one[2].samples_per_s)
        if "decode" not in call.bounds or feed.storage_mb_per_s is not None:
            yield (
                f"to keep {several(row.devices, row.target)} busy with {row.precision} at batch "
                f"{call.batch}, the host delivers {figures.number(feed.samples_per_s)} samples "
                f"per second: "
                f"{_delivered(feed)} (predicted)"
            )


def _delivered(feed: PlannedFeed) -> str:
    link = ""
    if feed.link_mb_per_s is not None:
        used = feed.to_device_mb_per_s / feed.link_mb_per_s
        link = f" over PCIe, {used:.1%} of its {figures.number(feed.link_mb_per_s)} MB/s"
    parts = [f"{figures.number(feed.to_device_mb_per_s)} MB/s of inputs{link}"]
    if feed.storage_mb_per_s is not None:
        parts.append(f"{figures.number(feed.storage_mb_per_s)} MB/s from storage")
    share = f"one core has {figures.ms(feed.core_ms_per_sample)} per sample, n cores n times that"
    return "; ".join([*parts, share])


def purchases(rows: Sequence[PlanRow]) -> Iterator[str]:
    """When a bought device has paid for itself, at the call of the lowest cost."""
    row = rows[0]
    if row.owned is None:
        return
    bought, months = row.owned.purchase, row.owned.break_even_months
    text = (
        f"bought for ${bought.usd:,.0f} ({bought.provider}, {bought.as_of}), "
        f"{row.owned.watts:g} W at ${row.owned.usd_per_kwh:g} per kWh: "
    )
    if months is None or row.price is None:
        yield f"{text}renting costs no more"
        return
    text += f"pays after {figures.number(months)} months against renting around the clock"
    loads = [call.load for row in rows for call in sorted(row.latency, key=_by_cost) if call.load]
    if loads and loads[0].break_even_months is not None:
        text += (
            f", after {figures.number(loads[0].break_even_months)} against renting only while "
            f"it computes ({loads[0].utilisation:.0%} of the time)"
        )
    yield text


def merged(lines: Iterable[str]) -> list[str]:
    """Sentences "target: text" or "target precisions: text", those with the same text as one:
    `fp16 on l4, t4: a call is bound by launch …`."""
    same: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        subject, _, text = line.partition(": ")
        target, _, precisions = subject.partition(" ")
        same.setdefault((precisions, text), []).append(target)
    found = []
    for (precisions, text), targets in same.items():
        if len(targets) == 1:
            subject = f"{targets[0]} {precisions}".rstrip()
        else:
            subject = f"{precisions} on {', '.join(targets)}" if precisions else ", ".join(targets)
        found.append(f"{subject}: {text}")
    return found


def _by_cost(call: PlannedLatency) -> float:
    usd = cost(call)
    return inf if usd is None else usd


def headline(plan: Plan) -> Headline:
    """What to choose; "likely" where its whole interval meets the limits and nothing is in
    doubt: nothing of a plan is measured."""
    pairs = sum(bool(row.latency) for row in plan.results)
    advice = plan.recommendation
    if advice is None:
        return Headline("pending", f"{pairs} pairs predicted", "Nothing is known of their cost.")
    if advice.ship == "none":
        return Headline("fail", "No target meets the limit", advice.sentence, advice.conditions)
    sure = advice.likely and not advice.conditions
    targets = len({row.target for row in plan.results})
    title = f"{pairs} of {len(plan.results)} pairs of target and precision, {targets} targets"
    return Headline("likely" if sure else "inconclusive", title, advice.sentence, advice.conditions)


@dataclass(frozen=True)
class FrontRow:
    """A call of the front as text."""

    name: str
    latency: str
    band: str
    usd: str
    usd_band: str


def _points(plan: Plan) -> list[FrontRow]:
    return [
        FrontRow(
            name(one),
            figures.ms(one.p50_ms),
            figures.span(one.band, figures.ms),
            figures.dollars(one.usd_per_million),
            figures.span(one.usd_band, figures.dollars),
        )
        for one in plan.front or ()
    ]


@dataclass(frozen=True)
class PlanTableRow:
    """A call as text; `figures`: one for each of the page's columns."""

    target: str
    precision: str
    batch: int
    figures: tuple[str, ...]
    bound: str


_COLUMNS = ("latency", "interval", "per second", "memory")
_BUSY = ("devices", "$ per million")
_LOADED = ("devices", "in use", "$ per hour", "$ per million")
_SPOT = ("at spot",)


def _rows(plan: Plan, *, loaded: bool, spot: bool) -> list[PlanTableRow]:
    batches = (plan.asked.batches if plan.asked else ()) or BATCHES
    return [
        PlanTableRow(
            row.target,
            row.precision,
            call.batch,
            (
                *_predicted(row, call),
                *(_at_load(call.load) if loaded else _busy(row, call)),
                *([figures.dollars(call.spot_usd_per_million)] if spot else ()),
            ),
            list(call.bounds.values())[-1],
        )
        for row in plan.results
        for call in shown(row, batches)
    ]


def _predicted(row: PlanRow, call: PlannedLatency) -> tuple[str, ...]:
    held = None if row.memory is None else row.memory.total / 1e9
    return (
        figures.ms(call.p50_ms),
        figures.span(call.band, figures.ms),
        figures.number(call.throughput),
        f"{figures.number(held)} GB",
    )


def _busy(row: PlanRow, call: PlannedLatency) -> tuple[str, ...]:
    return figures.count(row.devices), figures.dollars(call.usd_per_million)


def _at_load(load: PlannedLoad | None) -> tuple[str, ...]:
    if load is None:
        return (figures.NONE,) * len(_LOADED)
    return (
        figures.count(load.devices),
        f"{load.utilisation:.0%}",
        figures.dollars(load.usd_per_hour),
        figures.dollars(load.usd_per_million),
    )


def _deliveries(plan: Plan) -> list[tuple[str, str]]:
    """Target, and what its host must deliver; target, and when it has paid for itself."""
    batches = (plan.asked.batches if plan.asked else ()) or BATCHES
    return [
        (target, line)
        for target, rows in _by_target(plan).items()
        for line in (*feeds(rows, batches), *purchases(rows))
    ]


def _by_target(plan: Plan) -> dict[str, list[PlanRow]]:
    rows: dict[str, list[PlanRow]] = {}
    for row in plan.results:
        if row.latency:
            rows.setdefault(row.target, []).append(row)
    return rows


def to_html(plan: Plan) -> str:
    calls = [call for row in plan.results for call in row.latency]
    loaded = any(call.load is not None for call in calls)
    spot = any(call.spot_usd_per_million is not None for call in calls)
    targets = _by_target(plan)
    return render(
        "plan.html",
        plan=plan,
        headline=headline(plan),
        targets=targets,
        chart=roofline(plan),
        front=front(plan),
        points=_points(plan),
        loaded=loaded,
        rows=_rows(plan, loaded=loaded, spot=spot),
        columns=(*_COLUMNS, *(_LOADED if loaded else _BUSY), *(_SPOT if spot else ())),
        prices=[(t, price(rows[0].price)) for t, rows in targets.items() if rows[0].price],
        deliveries=_deliveries(plan),
        advice=merged(plan.advice),
    )


def to_svg(plan: Plan) -> str:
    """Both drawings of the page."""
    return render("plan.svg", front=front(plan), chart=roofline(plan))
