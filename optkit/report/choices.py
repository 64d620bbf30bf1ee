"""The choice among several builds, or among the rows of a plan: the fastest and the cheapest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optkit.documents.measured import LatencyFigures
from optkit.documents.prices import DatedPrice
from optkit.documents.recommendation import Recommendation
from optkit.documents.result import Result
from optkit.evidence import Evidence
from optkit.prediction.cost import per_million
from optkit.prediction.economics import cost
from optkit.report import figures
from optkit.report.recommendation import device, device_of, of_result, spelled

if TYPE_CHECKING:  # a build does not import the models of a plan
    from optkit.documents.plan import Plan, PlannedLatency, PlanRow


@dataclass(frozen=True)
class Choice:
    """A build or a baseline that may be shipped. `usd`: per million samples."""

    name: str
    latency: LatencyFigures
    usd: float | None


def of_fleet(results: Iterable[Result], prices: Mapping[str, DatedPrice]) -> Recommendation | None:
    """The fastest and the cheapest of those that may be shipped: a candidate that pays, or the
    baseline of one that does not. `prices`: by target. None where no latency is known."""
    choices = list(dict.fromkeys(_choices(results, prices)))
    if not choices:
        return None
    fastest = max(choices, key=lambda one: one.latency.throughput)
    priced = [one for one in choices if one.usd is not None]
    cheapest = min(priced, key=lambda one: one.usd or 0.0) if priced else None
    speed = (
        f"{fastest.name}, {figures.ms(fastest.latency.p50_ms)} at batch {fastest.latency.batch} "
        f"({fastest.latency.evidence})"
    )
    parts = [f"Fastest that passes: {speed}."]
    if cheapest is not None and cheapest.name == fastest.name:
        parts = [f"Fastest and cheapest that passes: {speed}, ${cheapest.usd:.3g} per million."]
    elif cheapest is not None:
        parts.append(
            f"Cheapest: {cheapest.name}, ${cheapest.usd:.3g} per million "
            f"({cheapest.latency.evidence})."
        )
    chosen = (fastest, *filter(None, [cheapest]))
    return Recommendation(
        ship="candidate",
        sentence=" ".join(parts),
        evidence=tuple(dict.fromkeys(one.latency.evidence for one in chosen)),
        conditions=(),
    )


def _choices(results: Iterable[Result], prices: Mapping[str, DatedPrice]) -> Iterable[Choice]:
    for result in results:
        advice = result.recommendation or of_result(result)
        if advice is None or advice.ship not in ("candidate", "baseline"):
            continue
        side = result if advice.ship == "candidate" else result.baseline
        if side is None or side.latency is None:
            continue
        price = prices.get(str(result.target))
        usd = None if price is None else per_million(price.usd_per_hour, side.latency.throughput)
        name = f"{spelled(side.precision)} on {device_of(result)}"
        yield Choice(name, side.latency, usd)


def of_plan(plan: Plan) -> Recommendation | None:
    """The fastest and the cheapest that meet the limits of a plan; None if nothing is predicted."""
    limit = plan.asked.latency_ms if plan.asked else None
    calls = [(row, call) for row in plan.results for call in row.latency]
    if not calls:
        return None
    row, call = min(calls, key=lambda one: one[1].p50_ms)
    if limit is not None and call.p50_ms > limit:
        least = f"the shortest takes {_planned_time(call)}, {_planned_name(row, call)}"
        return Recommendation(
            ship="none", sentence=f"Nothing meets {figures.ms(limit)}: {least}.",
            evidence=(Evidence.PREDICTED,), conditions=(),
        )  # fmt: skip
    best, chosen = plan.cheapest, [(row, call)]
    passes = "" if limit is None else " that passes"
    parts = [f"Fastest{passes}: {_planned(row, call)}."]
    if best is not None:
        cheapest = next(
            (row, call)
            for row, call in calls
            if (row.target, row.precision, call.batch) == (best.target, best.precision, best.batch)
        )
        if cheapest == chosen[0]:
            parts = [f"Fastest and cheapest{passes}: {_planned(row, call)}."]
        else:
            chosen.append(cheapest)
            parts.append(f"Cheapest: {_planned(*cheapest)}.")
    return Recommendation(
        ship="candidate" if all(_certain(call, limit) for _, call in chosen) else "unknown",
        sentence=" ".join(parts),
        evidence=(Evidence.PREDICTED,),
        conditions=tuple(dict.fromkeys(_doubts(chosen, limit))),
    )


def _planned(row: PlanRow, call: PlannedLatency) -> str:
    """`2 × FP8 on NVIDIA H100, 0.4 ms at batch 1 (0.3 to 0.5 ms, predicted), $1 per million`."""
    text = f"{_planned_name(row, call)}, {_planned_time(call)}"
    usd = cost(call)
    if usd is None:
        return f"{text}, price unknown"
    at = "" if call.load is None else f" at {call.load.utilisation:.0%} use"
    return f"{text}, ${usd:.3g} per million{at}"


def _planned_name(row: PlanRow, call: PlannedLatency) -> str:
    devices = row.devices if call.load is None else call.load.devices
    several = "" if devices in (None, 1) else f"{devices} × "
    return f"{spelled(row.precision)} on {several}{device(row.target)}"


def _planned_time(call: PlannedLatency) -> str:
    span = figures.span(call.band, figures.ms)
    each = " per token" if "decode" in call.bounds else ""
    return f"{figures.ms(call.p50_ms)}{each} at batch {call.batch} ({span}, {call.evidence})"


def _certain(call: PlannedLatency, limit: float | None) -> bool:
    return limit is None or call.band[1] <= limit


def _doubts(chosen: Iterable[tuple[PlanRow, PlannedLatency]], limit: float | None) -> Iterable[str]:
    """What speaks against the figures of a plan's choices."""
    for row, call in chosen:
        name = device(row.target)
        if limit is not None and not _certain(call, limit):
            end = figures.ms(call.band[1])
            yield f"{name}: the interval ends at {end}, above the limit of {figures.ms(limit)}"
        if row.measured_generation is False:
            yield f"{name}: no device of its generation was measured for the fit"
        if row.price is not None and not row.price.verified:
            yield f"{name}: its price is unverified"
