"""What to do with a build, in one sentence: ship it, ship the baseline, or find out first what.

A recommendation answers another question than a gate. A gate says whether limits hold. The
recommendation says whether the candidate is worth shipping in place of its baseline: a candidate
that keeps every limit and is not faster is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optkit.devices import target as find_target
from optkit.documents.measured import DifferenceFigures, FidelityFigures, LatencyFigures
from optkit.documents.prices import DatedPrice
from optkit.documents.recommendation import Recommendation, Ship
from optkit.documents.result import Result
from optkit.errors import UnknownName
from optkit.evidence import Evidence
from optkit.prediction.cost import per_million
from optkit.prediction.economics import cost
from optkit.report import figures

if TYPE_CHECKING:  # a build does not import the models of a plan
    from optkit.documents.plan import Plan, PlannedLatency, PlanRow

WORTH = 1.05
"""The least speedup that is worth another numeric format: below 5 % a change of the driver, of the
batch or of the clock decides what is faster."""

SMALLER = 0.9  # of the baseline's size: from there the sentence names the size

# Gates that compare the candidate with its baseline, so that the baseline keeps them.
_RELATIVE = ("max_drop", "max_slice_drop", "min_sqnr")


def of_result(result: Result) -> Recommendation | None:
    """The recommendation for a build of one graph; None if there is no artifact."""
    if result.error is not None or result.gate is None:
        return None
    ship, sentence = _decision(result)
    known = (result.speedup, result.drop or result.fidelity)
    return Recommendation(
        ship=ship,
        sentence=sentence,
        evidence=tuple(dict.fromkeys(one.evidence for one in known if one is not None)),
        conditions=tuple(_conditions(result)),
    )


def of_parts(parts: Mapping[str, Result]) -> Recommendation | None:
    """Of a model that is several graphs, which are shipped together."""
    each = {name: one for name, part in parts.items() if (one := of_result(part)) is not None}
    if not each:
        return None
    ships = {one.ship for one in each.values()}
    order: tuple[Ship, ...] = ("none", "unknown", "candidate", "baseline")
    return Recommendation(
        ship=next(ship for ship in order if ship in ships),
        sentence=" ".join(f"{name}: {one.sentence}" for name, one in each.items()),
        evidence=tuple(dict.fromkeys(known for one in each.values() for known in one.evidence)),
        conditions=tuple(dict.fromkeys(why for one in each.values() for why in one.conditions)),
    )


def _decision(result: Result) -> tuple[Ship, str]:
    """The first rule that applies."""
    name, where = spelled(result.precision), device_of(result)
    assert result.gate is not None
    reasons = result.gate.reasons
    reason = reasons[0] if reasons else "a gate fails"
    if result.gate.verdict == "fail":
        if _relative(reasons) and result.baseline is not None:
            base = spelled(result.baseline.precision)
            return "baseline", f"Do not ship {name} on {where}: {reason}. Ship {base}."
        return "none", f"Do not ship {name} on {where}: {reason}."
    if result.calibration is not None and result.calibration.verdict == "suspect":
        what = result.calibration.findings[0].what
        return "unknown", f"Check the calibration data before you ship {name}: {what}."
    if result.gate.verdict == "inconclusive":
        if _relative(reasons) and (lost := _surely_lost(result)) is not None:
            return "baseline", f"{name} gains nothing on {where} {lost}; {reason}."
        return "unknown", f"Not decided for {name} on {where}: {reason}."
    if result.latency is None:
        return "unknown", _pending(result, name, where)
    return _by_speed(result, name, where)


def _relative(reasons: Sequence[str]) -> bool:
    """Whether all reasons are of gates that the baseline keeps."""
    return bool(reasons) and all(reason.partition(":")[0] in _RELATIVE for reason in reasons)


def _surely_lost(result: Result) -> str | None:
    """Why the baseline is the better choice at any accuracy: the whole interval of the speedup is
    below what is worth it. None if it is not so."""
    speedup, baseline = result.speedup, result.baseline
    if speedup is None or baseline is None or baseline.precision == result.precision:
        return None
    if (speedup.ci95[1] if speedup.ci95 else speedup.value) >= WORTH:
        return None
    size = _size(result, spelled(result.precision))
    times = figures.times(speedup.value)
    return f"({times}, {_interval(speedup)}): ship {spelled(baseline.precision)}{size}"


def _pending(result: Result, name: str, where: str) -> str:
    finish = f" Measure it there: {result.pending[0].finish}" if result.pending else ""
    kept = f"{name} keeps accuracy ({_accuracy(result)})"
    return f"{kept}; its speed on {where} is not known.{finish}"


def _by_speed(result: Result, name: str, where: str) -> tuple[Ship, str]:
    """Every gate holds, and the latency is known."""
    latency, speedup, baseline = result.latency, result.speedup, result.baseline
    assert latency is not None
    if baseline is None or speedup is None or baseline.precision == result.precision:
        return "candidate", (
            f"{name} on {where}: {figures.ms(latency.p50_ms)} at batch {latency.batch} "
            f"({latency.evidence}); {_accuracy(result)}."
        )
    base, kept = spelled(baseline.precision), _accuracy(result)
    times, how = figures.times(speedup.value), _interval(speedup)
    low = speedup.ci95[0] if speedup.ci95 else speedup.value
    if speedup.value < WORTH:
        return "baseline", (
            f"{name} keeps accuracy and gains nothing on {where} ({times}, {how}): ship {base}"
            f"{_size(result, name)}."
        )
    if low <= 1:
        return "unknown", (
            f"{name} is probably faster than {base} on {where} ({times}, {how}), {kept}: measure "
            "it there before you ship it."
        )
    return "candidate", f"{name} is {times} as fast as {base} on {where} ({how}), {kept}: ship it."


def _interval(speedup: DifferenceFigures) -> str:
    """`1.35 to 2.39, predicted`."""
    span = figures.span(speedup.ci95, lambda value: f"{value:.2f}")
    return ", ".join(filter(None, (span, speedup.evidence)))


def _size(result: Result, name: str) -> str:
    size = result.size
    if size is None or not size.baseline_bytes or size.bytes > SMALLER * size.baseline_bytes:
        return ""
    saved = 1 - size.bytes / size.baseline_bytes
    return f"; {name} is for you only if its {saved:.0%} smaller engine counts"


def _accuracy(result: Result) -> str:
    """What the candidate loses, as the end of a sentence."""
    drop, fidelity = result.drop, result.fidelity
    if drop is not None:
        proportion = result.accuracy is not None and result.accuracy.proportion
        show = figures.points if proportion else figures.percent
        metric = f" of {figures.name(result.accuracy.metric)}" if result.accuracy else ""
        lost = f"drop {show(drop.value)}" if drop.value > 0 else "no drop"
        return f"{lost}{metric} ({drop.evidence})"
    return _likeness(fidelity) if fidelity is not None else "accuracy unknown"


def _likeness(fidelity: FidelityFigures) -> str:
    shown = "equal" if fidelity.sqnr_db is None else figures.decibels(fidelity.sqnr_db)
    return f"SQNR {shown} to {spelled(fidelity.reference)} ({fidelity.evidence})"


def _conditions(result: Result) -> Iterable[str]:
    """What a reader should know before the sentence is believed."""
    sides = (result.latency, result.baseline.latency if result.baseline else None)
    marks = dict.fromkeys(mark for one in sides if one for mark in one.marks)
    if marks:
        yield f"measured under bad conditions: {'; '.join(marks)}"


def of_search(
    result: Result, *, quantized: int, layers: int, reason: str | None, kept: bool
) -> Recommendation | None:
    """Of a search whose winner is `result`. `quantized` of `layers` are quantized in it; `reason`:
    why nothing is quantized, or why the budget is not kept (`kept`)."""
    advice = of_result(result)
    if advice is None:
        return None
    where, carrier = device_of(result), spelled(result.precision)
    if not kept:
        return advice.model_copy(
            update={"ship": "none", "sentence": f"Nothing to ship on {where}: {reason}."}
        )
    if reason is not None:
        sentence = f"No quantized candidate pays on {where}: {reason}. Ship {carrier}."
        return advice.model_copy(update={"ship": "baseline", "sentence": sentence})
    found = f"{quantized} of {layers} layers quantized. {advice.sentence}"
    return advice.model_copy(update={"sentence": found})


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


def spelled(precision: str | None) -> str:
    """`INT8`, `INT8 weight-only`, as people write it."""
    head, _, rest = (precision or "it").partition("-")
    return " ".join(filter(None, (head.upper(), rest)))


def device_of(result: Result) -> str:
    """The name of a build's device for people."""
    sides = (result.latency, result.baseline.latency if result.baseline else None)
    machines = (one.machine for one in sides if one is not None)
    return device(result.target, next(filter(None, machines), None))


def device(name: str | None, machine: str | None = None) -> str:
    """The device's name for people; that of a stranger's document as it is. The target `cpu` is the
    CPU that measured, `machine`, which may be another one than that of this machine."""
    if name == "cpu":
        return figures.name(machine) if machine else "the CPU that built it"
    try:
        return find_target(str(name)).title
    except UnknownName:
        return figures.name(name)
