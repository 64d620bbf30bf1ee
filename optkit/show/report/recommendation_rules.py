"""What to do with a build, in one sentence: ship it, try it, ship the baseline, or find out first
what. "Ship it" needs a gain that was measured on the target; a predicted one is to be tried there.

A recommendation answers another question than a gate. A gate says whether limits hold. The
recommendation says whether the candidate is worth shipping in place of its baseline: a candidate
that keeps every limit and is not shown to be faster is not.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from optkit.craft.benchmarking.gates import NO_TASK
from optkit.facts.documents.recommendation import Decision, Recommendation, Ship
from optkit.facts.documents.result import CalibrationCheck, Result
from optkit.facts.documents.sizes import DeclaredSizes
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference
from optkit.show.report import coverage, figures, gate_reasons, worth
from optkit.show.report.titles import device_of, named, spelled, to_ship_instead


@dataclass(frozen=True)
class _Decision:
    """`known`: the evidence of the figures that decide; None for figures that do not exist."""

    ship: Ship
    sentence: str
    known: Sequence[Evidence | None] = ()
    likely: Literal[True] | None = None


def of_result(result: Result) -> Recommendation | None:
    """The recommendation for a build of one graph; None if there is no artifact."""
    if result.error is not None or result.gate is None:
        return None
    decision = _decision(result)
    known = dict.fromkeys(one for one in decision.known if one is not None)
    return Recommendation(
        ship=decision.ship,
        likely=decision.likely,
        sentence=decision.sentence,
        evidence=tuple(known),
        conditions=tuple(_conditions(result)),
    )


def of_parts(parts: Mapping[str, Result], artifact: str) -> Recommendation | None:
    """Of a model that is several graphs, which are shipped together. `artifact`: the whole."""
    each = {
        name: one
        for name, part in parts.items()
        if (one := of_result(part.model_copy(update={"artifact": artifact}))) is not None
    }
    if not each:
        return None
    decision, lead = _together(parts, {one.decision for one in each.values()})
    return Recommendation(
        ship="unknown" if decision == "likely" else decision,
        likely=True if decision == "likely" else None,
        sentence=lead + " ".join(f"{name}: {one.sentence}" for name, one in each.items()),
        evidence=tuple(dict.fromkeys(known for one in each.values() for known in one.evidence)),
        conditions=tuple(dict.fromkeys(why for one in each.values() for why in one.conditions)),
    )


def _together(parts: Mapping[str, Result], decisions: set[Decision]) -> tuple[Decision, str]:
    """What to do with all parts, and the words before their sentences, if these differ."""
    if len(decisions) == 1:
        return decisions.pop(), ""
    if decisions == {"candidate", "likely"}:
        return "likely", ""
    name = spelled(next(iter(parts.values())).precision)
    why = "its parts are shipped together. "
    if any(part.gate is not None and part.gate.verdict == "fail" for part in parts.values()):
        return "none" if "none" in decisions else "baseline", f"Do not ship {name}: {why}"
    return "unknown", f"Not decided for {name}: {why}"


def _decision(result: Result) -> _Decision:
    """The first rule that applies."""
    assert result.gate is not None
    verdict, fault = result.gate.verdict, _fault(result)
    if coverage.nothing(result):
        return _nothing(result)
    if verdict == "fail":
        return _failed(result, fault)
    if fault is not None:
        far = "" if result.untrained is not None else _unjudged(result.gate.reasons)
        return _Decision("unknown", f"Not decided for {named(result)}: {fault}{far}")
    speedup = worth.compared(result)
    slower = speedup is not None and worth.shown(speedup) in ("loss", "too little")
    if result.sizes is not None and result.sizes.verdict == "suspect" and not slower:
        return _Decision("unknown", f"Not decided for {named(result)}: {_lossy(result.sizes)}")
    if verdict == "inconclusive":
        return _undecided(result)
    if result.latency is None:
        return _without_latency(result)
    return _by_speed(result)


def _fault(result: Result) -> str | None:
    """Why the figures say nothing about the model."""
    if result.untrained is not None:
        return _untrained(result.untrained)
    check = result.calibration
    return _suspect(check) if check is not None and check.verdict == "suspect" else None


def _nothing(result: Result) -> _Decision:
    """No product is quantized, so the candidate is the baseline in other words."""
    found, base = result.quantized, _base(result)
    assert found is not None and result.gate is not None
    share = coverage.share(found, result.precision)
    text = f"Nothing is quantized: {share} on {device_of(result)}"
    if why := coverage.reasons(found):
        text += f"; {why}"
    broken = [reason for reason in result.gate.reasons if gate_reasons.BROKEN in reason]
    if not broken or gate_reasons.all_relative(broken):
        return _Decision("baseline", f"{text}. Ship {base} instead.")
    told = "; ".join(gate_reasons.told(result, reason) for reason in broken)
    return _Decision(
        "none", f"{text}. And {told}: do not ship it.", gate_reasons.evidence(result, broken)
    )


def _failed(result: Result, fault: str | None) -> _Decision:
    """A limit is broken. `fault`: why the figures say nothing about the model; it is to be mended
    before anything of this build is shipped."""
    reasons = result.gate.reasons if result.gate else ()
    broken = [reason for reason in reasons if gate_reasons.BROKEN in reason] or list(reasons)
    why = "; ".join(gate_reasons.told(result, reason) for reason in broken) or "a gate fails"
    do_not, known = f"Do not ship {named(result)}: {why}", gate_reasons.evidence(result, broken)
    if fault is not None:
        sound = (
            _sound(result) if gate_reasons.all_relative(broken) and result.untrained is None else ""
        )
        text = f"{do_not}. Likely cause: {fault}{sound}"
        return _Decision("baseline" if sound else "none", text, known)
    if gate_reasons.all_relative(broken) and result.baseline is not None:
        text = f"{do_not}. Ship {_base(result)}.{_to_explain(result)}"
        return _Decision("baseline", text, known)
    return _Decision("none", f"{do_not}.{_way_out(result, broken)}", known)


def _undecided(result: Result) -> _Decision:
    """A limit may or may not hold. If the candidate gains too little at any accuracy, the baseline
    is the better choice all the same."""
    reasons = result.gate.reasons if result.gate else ()
    speedup, why = (
        worth.compared(result),
        gate_reasons.told(result, reasons[0]) if reasons else "a gate",
    )
    if (
        gate_reasons.all_relative(reasons)
        and speedup
        and worth.shown(speedup) in ("loss", "too little")
    ):
        text = f"{_lost(result, speedup)}.{_share(result)} {_capital(why)}."
        return _Decision("baseline", f"{text}{worth.besides(result)}", [speedup.evidence])
    far = _unjudged(reasons[1:])
    others = sum(not gate_reasons.is_doubt(reason) for reason in reasons[1:])
    more = f"; gates not decided besides: {others}" if others > 0 else ""
    if speedup is not None:
        more += f". {_capital(worth.gain(result, speedup))}"
    text = f"Not decided for {named(result)}: {why}{more}.{far}"
    return _Decision(
        "unknown",
        f"{text}{_share(result)}{worth.larger(result)}{_to_decide(result, reasons)}",
        gate_reasons.evidence(result, reasons[:1]),
    )


def _unjudged(reasons: Iterable[str]) -> str:
    """Warnings of outputs that may be broken and that no task has judged, as sentences; empty if
    there are none."""
    far = list(filter(gate_reasons.is_doubt, reasons))
    return f" Do not ship it before a task has judged it: {'; '.join(far)}." if far else ""


def _to_decide(result: Result, reasons: Sequence[str]) -> str:
    """What decides the first reason, as a sentence; empty if the reason says it all."""
    reason = reasons[0] if reasons else ""
    if NO_TASK in reason:
        return " Give an evaluation task (--eval) and build again."
    if " samples in all would decide it" in reason:
        again = f", and {worth.to_measure(result)}," if worth.marks(result) else ""
        return f" Evaluate it on more samples{again} before you ship it."
    if gate_reasons.judged(reason) in ("latency", "speedup"):
        return f" {_capital(worth.to_measure(result))}."
    return ""


def _untrained(why: str) -> str:
    return f"{why}. Give the trained weights (model.weights in the recipe), and build again."


def _sound(result: Result) -> str:
    """What to ship while the calibration data are mended: the baseline does not use them. Its score
    on the evaluation data tells whether these are sound. And whether another build can gain
    speed. Empty if the baseline has no score."""
    base, speedup = result.baseline, worth.compared(result)
    if base is None or base.accuracy is None:
        return ""
    score, name = base.accuracy, _base(result)
    value = f"{figures.name(score.metric)} {figures.number(score.value)} ({score.evidence})"
    text = (
        f" {name}, which does not use the calibration data, has {value} on the evaluation data: if "
        f"that is its usual score, ship {name} until then."
    )
    if speedup is not None and worth.shown(speedup) != "gain":
        text += f" Other data do not make it faster, and {worth.gain(result, speedup)}."
    return text


def _to_explain(result: Result) -> str:
    if result.artifact is None:
        return ""
    command = figures.name(f"optkit explain {shlex.quote(result.artifact)}")
    return f" `{command}` looks for the cause."


def _suspect(check: CalibrationCheck) -> str:
    first = check.findings[0]
    where = "" if first.input is None else f"at input {figures.name(first.input)!r}, "
    return f"{where}{first.what}. {_capital(first.hint)}, and build again."


def _lossy(sizes: DeclaredSizes) -> str:
    """The largest loss at the declared sizes, and what to do."""
    lowest = min(sizes.findings, key=lambda one: -inf if one.measured is None else one.measured)
    return f"{lowest.what}. {_capital(lowest.hint)}, and build again."


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _base(result: Result) -> str:
    return to_ship_instead(result)


def _way_out(result: Result, broken: Sequence[str]) -> str:
    """What to do if a limit of time is broken: perhaps the baseline keeps it."""
    base, speedup = result.baseline, worth.compared(result)
    if all(gate_reasons.judged(reason) != "latency" for reason in broken):
        return ""
    other = (
        "take a faster device (`optkit plan` compares them), try another batch, or change the limit"
    )
    if base is None or base.latency is None or speedup is None:
        return f" {_capital(other)}."
    takes = f" {_base(result)} takes {worth.time(base.latency)}"
    if ship_neither(result):
        return f"{takes} and breaks the limit too: ship neither; {other}."
    return f"{takes}: ship {_base(result)} if it keeps the limits, or {other}."


def ship_neither(result: Result) -> bool:
    """Whether the candidate breaks a limit of time, and the baseline, shown to be slower, too."""
    if result.gate is None or _fault(result) is not None:
        return False
    speedup = worth.compared(result)
    slow = any(
        gate_reasons.BROKEN in reason and gate_reasons.judged(reason) == "latency"
        for reason in result.gate.reasons
    )
    return slow and speedup is not None and speedup.ci95 is not None and speedup.ci95[0] > 1


def _without_latency(result: Result) -> _Decision:
    fidelity = result.drop or result.fidelity
    return _Decision(
        "unknown",
        f"Not decided for {named(result)}: its speed is not known, {worth.accuracy(result)}. "
        f"Before you ship it, {worth.to_measure(result)}.",
        [fidelity.evidence if fidelity else None],
    )


def _by_speed(result: Result) -> _Decision:
    """Every gate holds, and the latency is known."""
    speedup, kept = worth.compared(result), worth.accuracy(result)
    if speedup is None:
        return _alone(result)
    judged = result.drop or result.fidelity
    what = worth.shown(speedup)
    if what in ("loss", "too little"):
        text = f"{_lost(result, speedup)}.{_share(result)}{worth.besides(result)}"
        return _Decision("baseline", text, [speedup.evidence])
    text = f"{_capital(worth.gain(result, speedup))}, {kept}"
    if what == "nothing" and speedup.value < worth.WORTH:
        order = f"ship {_base(result)}, or, to know the gain, {worth.to_measure(result)}"
        text = f"{text}: {order}.{_share(result)}{worth.resized(result)}"
        return _Decision("baseline", text, [speedup.evidence])
    known = [speedup.evidence, judged.evidence if judged else None]
    if worth.marks(result):
        text = f"Not decided for {named(result)}: {worth.disturbed(result, speedup)}, {kept}"
    measured = speedup.evidence is Evidence.MEASURED
    missing = measured and worth.pending_engine(result)
    more = f"{_share(result)}{worth.larger(result)}"
    if what == "nothing" or missing or worth.marks(result):
        order = f"before you ship it, {worth.to_measure(result)}"
        return _Decision("unknown", f"{text}: {order}.{more}", known)
    if measured:
        return _Decision("candidate", f"{text}: ship it.{more}", known)
    text = f"Likely, not measured: {text}.{more} {_before_shipping(result)}"
    return _Decision("unknown", text, known, likely=True)


def _alone(result: Result) -> _Decision:
    """There is no baseline of another precision to compare with."""
    latency, base = result.latency, result.baseline
    assert latency is not None
    takes = worth.time(latency)
    if base is None or base.precision != result.precision:
        lacks = f"no baseline was timed, {worth.accuracy(result)}"
        text = f"No gain is shown for {named(result)}: {takes}, and {lacks}."
        return _Decision("unknown", text, [latency.evidence])
    text = f"{named(result)} takes {takes} and is itself the baseline"
    if latency.evidence is Evidence.MEASURED:
        return _Decision("candidate", f"{text}: ship it.", [latency.evidence])
    text = f"{text}, so no gain is claimed. {_before_shipping(result)}"
    return _Decision("unknown", text, [latency.evidence], likely=True)


def _before_shipping(result: Result) -> str:
    return f"{_capital(worth.to_measure(result))} before you ship it."


def _share(result: Result) -> str:
    """How few products are quantized, as a sentence; empty if most are."""
    found = result.quantized
    if found is None or not coverage.few(result):
        return ""
    return f" Only {coverage.share(found, result.precision)}."


def _lost(result: Result, speedup: Difference) -> str:
    """That the baseline is the better choice at any accuracy."""
    figure = _capital(worth.gain(result, speedup))
    if worth.shown(speedup) == "too little" and speedup.value >= 1:
        figure += ", too little for a change of the number format"
    again = f", or, to be sure, {worth.to_measure(result)}" if worth.marks(result) else ""
    return f"{figure}: ship {_base(result)}{again}"


def _conditions(result: Result) -> Iterable[str]:
    """What a reader should know before the sentence is believed."""
    if reasons := worth.marks(result):
        yield f"measured under bad conditions: {'; '.join(reasons)}"
    if result.untrained is not None:
        yield "the gate says nothing about a trained model"
    if result.calibration is not None and result.calibration.verdict == "suspect":
        yield "the calibration data is suspect"


def of_search(
    result: Result, *, quantized: int, layers: int, reason: str | None, kept: bool, known: Evidence
) -> Recommendation | None:
    """Of a search whose winner is `result`. `quantized` of `layers` are quantized in it; `reason`:
    why nothing is quantized, or why the budget is not kept (`kept`); `known`: the evidence of the
    figures in this reason."""
    advice = result.recommendation or of_result(result)
    if advice is None:
        return None
    if not kept:
        return advice.model_copy(update=_over_budget(result, reason))
    if reason is not None:
        carrier = spelled(result.precision)
        takes = f"; {carrier} takes {worth.time(result.latency)}" if result.latency else ""
        sentence = f"Ship {carrier} on {device_of(result)}: {reason} ({known}){takes}."
        update = {"ship": "baseline", "likely": None, "sentence": sentence, "evidence": (known,)}
        return advice.model_copy(update=update)
    found = f"{quantized} of {layers} layers quantized. {advice.sentence}"
    return advice.model_copy(update={"sentence": found})


def _over_budget(result: Result, reason: str | None) -> dict[str, object]:
    """The fields that change for a winner that breaks a limit of the search or of a gate."""
    if result.gate is not None and result.gate.verdict == "fail":  # it says why
        return {}
    why = reason or "it breaks a limit of the search"
    judged, latency = result.drop or result.fidelity, result.latency
    takes = "" if latency is None else f"{worth.time(latency)} and "
    sentence = (
        f"Do not ship {named(result)}: {why}, with {takes}{worth.accuracy(result)}. Raise the "
        "limit that it breaks, and search again."
    )
    known = dict.fromkeys(one.evidence for one in (judged, latency) if one is not None)
    return {"ship": "none", "likely": None, "sentence": sentence, "evidence": tuple(known)}
