"""What to do with a build, in one sentence: ship it, ship the baseline, or find out first what.

A recommendation answers another question than a gate. A gate says whether limits hold. The
recommendation says whether the candidate is worth shipping in place of its baseline: a candidate
that keeps every limit and is not faster is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from optkit.benchmarking.gates import NO_TASK
from optkit.devices import target as find_target
from optkit.documents.measured import DifferenceFigures, FidelityFigures
from optkit.documents.recommendation import Recommendation, Ship
from optkit.documents.result import CalibrationCheck, Result
from optkit.errors import UnknownName
from optkit.evidence import Evidence
from optkit.report import figures

WORTH = 1.05
"""The least speedup that is worth another numeric format: below 5 % a change of the driver, of the
batch or of the clock decides what is faster."""

SMALLER = 0.9  # of the baseline's size: from there the sentence names the size

# Gates that compare the candidate with its baseline, so that the baseline keeps them.
_RELATIVE = ("max_drop", "max_slice_drop", "min_sqnr")

_TIMING = ("max_latency_ms", "min_throughput")  # gates that a faster baseline may keep

_LIMITED: Mapping[str, str] = MappingProxyType(
    {
        "max_drop": "drop",
        "max_slice_drop": "drop in a slice",
        "min_slice_value": "accuracy in a slice",
        "max_slice_value": "accuracy in a slice",
        "min_value": "accuracy",
        "max_value": "accuracy",
        "min_sqnr": "SQNR",
        "max_latency_ms": "latency",
        "min_speedup": "speedup",
        "min_throughput": "throughput",
        "max_bytes": "size",
        "max_memory_bytes": "memory of a run",
    }
)
"""Gate → what it limits."""


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
    reason = _reason(reasons)
    if result.untrained is not None:
        return "unknown", _untrained(result.untrained, f"{name} on {where}")
    if result.calibration is not None and result.calibration.verdict == "suspect":
        return "unknown", _suspect(result.calibration, name)
    if result.gate.verdict == "fail":
        if _relative(reasons) and result.baseline is not None:
            base = spelled(result.baseline.precision)
            return "baseline", f"Do not ship {name} on {where}: {reason}. Ship {base}."
        return "none", f"Do not ship {name} on {where}: {reason}.{_baseline_time(result)}"
    if result.gate.verdict == "inconclusive":
        if _relative(reasons) and (lost := _surely_lost(result)) is not None:
            return "baseline", f"{name} gains nothing on {where} {lost}; {reason}."
        return "unknown", f"Not decided for {name} on {where}: {reason}.{_if_it_holds(result)}"
    if result.latency is None:
        return "unknown", _pending(result, name, where)
    return _by_speed(result, name, where)


def _relative(reasons: Sequence[str]) -> bool:
    """Whether the baseline keeps the limits of all reasons: it loses no accuracy to itself."""
    return bool(reasons) and all(
        reason == NO_TASK or reason.partition(":")[0] in _RELATIVE for reason in reasons
    )


def _reason(reasons: Sequence[str]) -> str:
    """The first reason, with what its gate limits in place of the gate's name."""
    if not reasons:
        return "a gate fails"
    gate, colon, rest = reasons[0].partition(": ")
    return f"{_LIMITED[gate]}: {rest}" if colon and gate in _LIMITED else reasons[0]


def _untrained(why: str, what: str) -> str:
    return (
        f"Not decided for {what}: {why}. Give the trained weights (model.weights in the recipe), "
        "and build again."
    )


def _suspect(check: CalibrationCheck, name: str) -> str:
    first = check.findings[0]
    which = "" if first.input is None else f"input {figures.name(first.input)!r}: "
    return f"Check the calibration data before you ship {name}: {which}{first.what}; {first.hint}."


def _baseline_time(result: Result) -> str:
    """The latency of the baseline, where the broken limit is one of time: perhaps it keeps it."""
    base = result.baseline
    reasons = result.gate.reasons if result.gate else ()
    timed = any(reason.startswith(_TIMING) for reason in reasons)
    if not timed or base is None or base.latency is None or base.precision == result.precision:
        return ""
    latency = base.latency
    span = figures.span(latency.ci95_ms or latency.band, figures.ms)
    how = ", ".join(filter(None, (span, latency.evidence)))
    return f" {spelled(base.precision)} takes {figures.ms(latency.p50_ms)} ({how})."


def _if_it_holds(result: Result) -> str:
    """What the candidate gains if the undecided limit holds."""
    speedup, base = result.speedup, result.baseline
    if speedup is None or base is None or base.precision == result.precision:
        return ""
    times = figures.times(speedup.value)
    return f" It is {times} as fast as {spelled(base.precision)} ({_interval(result, speedup)})."


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
    return f"({times}, {_interval(result, speedup)}): ship {spelled(baseline.precision)}{size}"


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
    times, how = figures.times(speedup.value), _interval(result, speedup)
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
    faster = f"{name} is {times} as fast as {base} on {where} ({how}), {kept}"
    if marks(result):
        return "unknown", f"{faster}: measure again before you ship it."
    return "candidate", f"{faster}: ship it."


def _interval(result: Result, speedup: DifferenceFigures) -> str:
    """`1.35 to 2.39, predicted`; `1.35 to 2.39, measured under bad conditions`."""
    span = figures.span(speedup.ci95, lambda value: f"{value:.2f}")
    marked = speedup.evidence is Evidence.MEASURED and marks(result)
    how = f"{speedup.evidence} under bad conditions" if marked else speedup.evidence
    return ", ".join(filter(None, (span, how)))


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
        if drop.value > 0:
            how = ", ".join(filter(None, (figures.span(drop.ci95, show), drop.evidence)))
            return f"drop {show(drop.value)}{metric} ({how})"
        most = f"at most {show(drop.ci95[1])}, " if drop.ci95 and drop.ci95[1] > 0 else ""
        return f"no drop{metric} ({most}{drop.evidence})"
    return _likeness(fidelity) if fidelity is not None else "accuracy unknown"


def _likeness(fidelity: FidelityFigures) -> str:
    shown = "equal" if fidelity.sqnr_db is None else figures.decibels(fidelity.sqnr_db)
    return f"SQNR {shown} to {spelled(fidelity.reference)} ({fidelity.evidence})"


def _conditions(result: Result) -> Iterable[str]:
    """What a reader should know before the sentence is believed."""
    if reasons := marks(result):
        yield f"measured under bad conditions: {'; '.join(reasons)}"


def marks(result: Result) -> list[str]:
    """Why the measured latencies are not reliable, each reason once."""
    sides = (result.latency, result.baseline.latency if result.baseline else None)
    return list(dict.fromkeys(mark for one in sides if one for mark in one.marks))


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
