"""The choice among several builds, or among the rows of a plan: the fastest and the cheapest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optkit.craft.prediction import economics
from optkit.craft.prediction.cost import per_million
from optkit.facts.device_facts import Price
from optkit.facts.documents.recommendation import Decision, Recommendation
from optkit.facts.documents.result import Result
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Latency
from optkit.show.report import figures, worth
from optkit.show.report.recommendation_rules import of_result
from optkit.show.report.titles import device, device_of, named, spelled

if TYPE_CHECKING:  # a build does not import the models of a plan
    from optkit.facts.documents.plan import Plan, PlannedLatency, PlanRow


_Built = tuple[Result, Recommendation]


@dataclass(frozen=True)
class Choice:
    """A build or a baseline that may be shipped. `usd`: per million samples; `gains`: whether it is
    a candidate that is shown to be faster than its baseline; `likely`: that is predicted."""

    name: str
    latency: Latency
    usd: float | None
    gains: bool
    likely: bool
    conditions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.name}, {worth.time(self.latency)}"


def of_fleet(results: Iterable[Result], prices: Mapping[str, Price]) -> Recommendation | None:
    """The fastest and the cheapest of those that may be shipped: a candidate that pays, or the
    baseline of one that does not. `prices`: by target. None if nothing was built."""
    built = [
        (result, advice)
        for result in results
        if (advice := result.recommendation or of_result(result)) is not None
    ]
    choices = list(dict.fromkeys(_choices(built, prices)))
    if choices:
        return _of_choices(choices, built)
    return _without_choice(built) if built else None


def _of_choices(choices: Sequence[Choice], built: Sequence[_Built]) -> Recommendation:
    chosen, parts = _ends(choices)
    lost = not any(one.gains for one in chosen) and any(worth.compared(one) for one, _ in built)
    likely = not lost and any(one.likely for one in chosen)
    more = [_LOST] if lost else [_TO_TRY] if likely else []
    return Recommendation(
        ship="baseline" if lost else "unknown" if likely else "candidate",
        likely=likely or None,
        sentence=" ".join([*parts, *more, *_undecided(built)]),
        evidence=tuple(dict.fromkeys(one.latency.evidence for one in chosen)),
        conditions=tuple(dict.fromkeys(why for one in chosen for why in one.conditions)),
    )


_LOST = "No quantized build is shown to be better."
_TO_TRY = "What is predicted is not measured: run `optkit finish` on the device before you ship it."


def _ends(choices: Sequence[Choice]) -> tuple[list[Choice], list[str]]:
    """The fastest and the cheapest, and their sentences."""
    fastest = max(choices, key=lambda one: one.latency.throughput)
    priced = [one for one in choices if one.usd is not None]
    if not priced:
        return [fastest], [f"Fastest that passes: {fastest.text}."]
    cheapest = min(priced, key=lambda one: one.usd or 0.0)
    if cheapest.name == fastest.name:
        usd = _usd(fastest.usd)
        return [fastest], [f"Fastest and cheapest that passes: {fastest.text}, {usd}."]
    last = f"Cheapest: {cheapest.text}, {_usd(cheapest.usd)}."
    return [fastest, cheapest], [f"Fastest that passes: {fastest.text}.", last]


def _undecided(built: Sequence[_Built]) -> list[str]:
    """A sentence on the builds that are to be checked or measured first, if there are any."""
    names = [named(result) for result, advice in built if advice.decision == "unknown"]
    return [f"Not decided yet: {', '.join(dict.fromkeys(names))}."] if names else []


def _without_choice(built: Sequence[_Built]) -> Recommendation:
    """Of builds none of which may be shipped, or without latencies that could be compared."""
    ships, undecided = {advice.decision for _, advice in built}, _undecided(built)
    best = next(one for one in _BEST_FIRST if one in ships)
    pays = ", ".join(named(result) for result, advice in built if advice.decision == best)
    words: Mapping[Decision, str] = {
        "candidate": f"Worth shipping: {pays}.",
        "likely": f"Likely worth shipping: {pays}. {_TO_TRY}",
        "baseline": _LOST,
        "unknown": "Do not ship any of these builds before it is checked or measured, as its own "
        "sentence says.",
        "none": "Do not ship any of these builds: each one breaks a limit.",
    }
    return Recommendation(
        ship="unknown" if best == "likely" else best,
        likely=best == "likely" or None,
        sentence=" ".join([words[best], *undecided]),
        evidence=(),
        conditions=tuple(dict.fromkeys(why for _, one in built for why in one.conditions)),
    )


_BEST_FIRST: tuple[Decision, ...] = ("candidate", "likely", "baseline", "unknown", "none")


def _usd(usd: float | None) -> str:
    return f"{figures.dollars(usd)} per million samples"


def _choices(built: Iterable[_Built], prices: Mapping[str, Price]) -> Iterable[Choice]:
    for result, advice in built:
        if advice.decision not in ("candidate", "likely", "baseline"):
            continue
        side = result.baseline if advice.decision == "baseline" else result
        if side is None or side.latency is None:
            continue
        price, name = prices.get(str(result.target)), spelled(side.precision)
        usd = None if price is None else per_million(price.usd_per_hour, side.latency.throughput)
        gains = advice.decision != "baseline" and worth.compared(result) is not None
        where = f"{name} on {device_of(result)}"
        yield Choice(where, side.latency, usd, gains, bool(advice.likely), advice.conditions)


def of_plan(plan: Plan) -> Recommendation | None:
    """The fastest and the cheapest that meet the limits of a plan; None if nothing is predicted."""
    limit = plan.asked.latency_ms if plan.asked else None
    calls = economics.calls(plan.results)
    if not calls:
        return None
    row, call = min(calls, key=lambda one: one[1].p50_ms)
    if limit is not None and call.p50_ms > limit:
        return _misses(row, call, limit)
    best, chosen = plan.cheapest, [(row, call)]
    passes = "" if limit is None else f" within {figures.ms(limit)}"
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
            parts.append(f"Cheapest{passes}: {_planned(*cheapest)}.")
    sure = all(_certain(call, limit) for _, call in chosen)
    parts.append(
        "Not measured: build it, and run `optkit finish` on the device before you ship it."
        if sure
        else "Measure before you decide: an interval ends above the limit."
    )
    return Recommendation(
        ship="unknown",
        likely=sure or None,
        sentence=" ".join(parts),
        evidence=(Evidence.PREDICTED,),
        conditions=tuple(dict.fromkeys(_doubts(chosen, limit))),
    )


def _misses(row: PlanRow, call: PlannedLatency, limit: float) -> Recommendation:
    """No predicted latency is within the limit; `call` is the shortest. Its interval may hold the
    limit."""
    least = f"the shortest takes {_planned_time(call)}, {_planned_name(row, call)}"
    perhaps = call.band[0] <= limit
    meets = "is predicted to meet" if perhaps else "meets"
    advice = ": its interval holds the limit, so measure it before you decide" if perhaps else ""
    return Recommendation(
        ship="unknown" if perhaps else "none",
        sentence=f"Nothing {meets} {figures.ms(limit)}: {least}{advice}.",
        evidence=(Evidence.PREDICTED,),
        conditions=(),
    )


def _planned(row: PlanRow, call: PlannedLatency) -> str:
    """`2 × FP8 on NVIDIA H100, 0.4 ms at batch 1 (0.3 to 0.5 ms, predicted), $1 per million`."""
    text = f"{_planned_name(row, call)}, {_planned_time(call)}"
    usd = economics.cost(call)
    if usd is None:
        return f"{text}, price unknown"
    at = "" if call.load is None else f" at {call.load.utilisation:.0%} use"
    million = "tokens" if "decode" in call.bounds else "samples"
    return f"{text}, {figures.dollars(usd)} per million {million}{at}"


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
