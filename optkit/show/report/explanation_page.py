"""The page of an explanation, and the words that it shares with the text of `optkit explain`.

The page shows an object of optkit.explain/v1 (documents/explanation.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from optkit.facts.documents.explanation import (
    CallLatency,
    ComparedLayers,
    Explained,
    ExplainFinding,
    LayerTime,
)
from optkit.facts.documents.report import Report
from optkit.facts.measurement import Fidelity, Score
from optkit.ground.recipe import Recipe
from optkit.show.explanation import Subject, explain
from optkit.show.report import figures
from optkit.show.report.build_facts import described
from optkit.show.report.html import render
from optkit.show.report.titles import device, spelled
from optkit.show.report.view import Figure, Headline, Highlight

KINDS = ("products", "Q/DQ and casts", "data movement", "other")
_LITTLE = 0.005  # share of the layers' time
_NAMED = 3  # operators
_WHOLES = {"latency": "the latency", "layers": "the layers' time", "noise": "the noise"}


def likeness(fidelity: Fidelity | ComparedLayers) -> str:
    found = _worst(fidelity)
    return "equal to" if found is None else f"SQNR {figures.decibels(found)} to"


def _worst(fidelity: Fidelity | ComparedLayers) -> float | None:
    """The SQNR of the worst output; None if the outputs are equal."""
    return fidelity.worst.sqnr_db if isinstance(fidelity, Fidelity) else fidelity.sqnr_db


def dropped(accuracy: Score | None, drop: float) -> str:
    """A drop, or a part of it, in the unit of its metric: points, or a share."""
    proportion = accuracy is not None and accuracy.proportion
    return (figures.points if proportion else figures.percent)(drop)


def cost(accuracy: Score | None, finding: ExplainFinding) -> str:
    """What the change of a finding would gain, as a value, as a share and with its evidence."""
    cost = finding.cost
    parts = []
    if cost.ms:
        parts.append(f"{figures.ms(cost.ms)} per call")
    if cost.points is not None:
        parts.append(dropped(accuracy, cost.points))
    if cost.db is not None:
        parts.append(figures.decibels(cost.db))
    parts = parts or ["unknown"]
    share = f"{cost.share:.0%} of {_WHOLES[cost.of]}"
    return f"{', '.join(parts)} ({share}, {cost.evidence})"


def kinds(time: LayerTime) -> list[tuple[str, float, float]]:
    """Milliseconds of candidate and baseline by what the layers do; the last row is their sum."""
    ours, theirs = (
        (side.product, side.convert, side.layout, side.other)
        for side in (time.candidate, time.baseline)
    )
    return [*zip(KINDS, ours, theirs, strict=True), ("total", sum(ours), sum(theirs))]


def fixed(found: Explained) -> str:
    """The operators that no precision makes faster, and the limit that follows, in a sentence."""
    spent = found.fixed
    if spent is None:
        return "what no precision makes faster is not known, as the times of layers are not"
    unfused = _unfused(found, spent.unfused_ms)
    if spent.at_most is None or spent.share < _LITTLE:
        nearly = "nearly none of the time is in operators that no precision makes faster"
        return f"{nearly} ({spent.evidence}){unfused}"
    shown = ", ".join(f"{one.op} {one.share:.0%}" for one in spent.operators[:_NAMED])
    return (
        f"{spent.share:.0%} of the time is in operators that no precision makes faster ({shown}); "
        f"even if the rest took no time, the model would be {spent.at_most:.1f}× as fast "
        f"({spent.evidence}){unfused}"
    )


def _unfused(found: Explained, ms: float | None) -> str:
    """The kernels that only this precision has, as a share of the time; empty if there are none."""
    if found.time is None or not ms:
        return ""
    *_, (_, total, _) = kinds(found.time)
    return (
        f"; {ms / total:.0%} is in operators that {found.baseline} computes inside its products, "
        f"and {found.precision} in kernels of their own"
    )


def copied(time: LayerTime) -> str | None:
    """What a call takes beside its layers, in a sentence; None if it is not known,
    or too little to say."""
    *_, (_, layers, _) = kinds(time)
    if time.copies_ms is None or time.copies_ms < _LITTLE * layers:
        return None
    most = "; this is the largest part, and smaller inputs shorten it (uint8, float16)"
    return (
        f"beside the layers, a call copies its inputs and outputs over PCIe: "
        f"{figures.ms(time.copies_ms)} (predicted){most if time.copies_ms > layers else ''}"
    )


def nothing(found: Explained) -> str:
    """The sentence for an artifact without findings."""
    subject = "layers, Q/DQ pairs and ranges" if found.time else "ranges and weights"
    return f"no rule suggests a change to {subject}"


@dataclass(frozen=True)
class FindingRow:
    """A finding and its cost as text."""

    cost: str
    finding: ExplainFinding


@dataclass(frozen=True)
class FigureRow:
    """A figure with its evidence."""

    label: str
    figure: Figure
    evidence: str


@dataclass(frozen=True)
class ExplainedPart:
    """An artifact, or one of its parts. `name`: empty for an artifact without parts; `times`: the
    rows of `kinds` as text."""

    name: str
    explained: Explained
    figures: list[FigureRow]
    times: list[tuple[str, str, str]]
    findings: list[FindingRow]
    nothing: str
    fixed: str
    copied: str | None


def _part(name: str, found: Explained) -> ExplainedPart:
    times = kinds(found.time) if found.time else []
    return ExplainedPart(
        name,
        found,
        list(_figures(found)),
        [(kind, _ms(ours), _ms(theirs)) for kind, ours, theirs in times],
        [FindingRow(cost(found.accuracy, one), one) for one in found.findings],
        nothing(found),
        fixed(found),
        copied(found.time) if found.time else None,
    )


def _ms(value: float) -> str:
    return figures.ms(round(value, 6))


def _parts(found: Explained) -> list[ExplainedPart]:
    if found.parts:
        return [_part(name, part) for name, part in found.parts.items()]
    return [_part("", found)]


def _figures(found: Explained) -> Iterator[FigureRow]:
    """Latency, accuracy and fidelity, as far as they are known."""
    yield from _speed(found)
    if score := found.accuracy:
        spread = figures.span(score.ci95, figures.number)
        label = f"{score.metric}, {figures.count(score.samples)} samples"
        yield FigureRow(label, Figure(figures.number(score.value), spread), score.evidence)
    if drop := found.drop:
        spread = figures.span(drop.ci95, lambda end: dropped(found.accuracy, end))
        yield FigureRow("drop", Figure(dropped(found.accuracy, drop.value), spread), drop.evidence)
    if outputs := found.fidelity:
        reference = f"{spelled(outputs.reference)}, {figures.count(outputs.samples)} samples"
        over = figures.span(outputs.worst.ci95, figures.decibels), figures.at_worst(outputs)
        figure = Figure(_sqnr(outputs), ", ".join(filter(None, over)))
        yield FigureRow(f"SQNR to {reference}", figure, outputs.evidence)
    if (layers := found.layers_compared) and not layers.reason:
        label = f"SQNR to FP32, the {figures.count(layers.samples)} samples of the findings"
        yield FigureRow(label, Figure(_sqnr(layers)), layers.evidence)


def _speed(found: Explained) -> Iterator[FigureRow]:
    calls: tuple[tuple[str, CallLatency | None], ...] = (
        (found.precision, found.latency),
        (str(found.baseline), found.baseline_latency),
    )
    for precision, call in calls:
        if call is not None:
            label = f"latency of {precision}, batch {call.batch}"
            yield FigureRow(label, Figure(figures.ms(call.p50_ms)), call.evidence)
    if speedup := found.speedup:
        spread = figures.span(speedup.ci95, figures.times)
        yield FigureRow(
            f"as fast as {found.baseline}",
            Figure(figures.times(speedup.value), spread),
            speedup.evidence,
        )


def _sqnr(fidelity: Fidelity | ComparedLayers) -> str:
    found = _worst(fidelity)
    return "equal" if found is None else figures.decibels(found)


def headline(parts: list[ExplainedPart]) -> Headline:
    """The most costly fault, else the most costly limit, with its change. Green only if no rule
    found anything."""
    ranked = sorted(
        ((part, one) for part in parts for one in part.findings),
        key=lambda pair: (pair[1].finding.limit, -pair[1].finding.cost.share),
    )
    if not ranked:
        return Headline("pass", "Nothing to change", f"{parts[0].nothing}.".capitalize())
    part, first = ranked[0]
    where = f"{part.name}: " if part.name else ""
    faults = sum(not one.finding.limit for _, one in ranked)
    limits = len(ranked) - faults
    counts = f"faults: {faults}; limits of this model on this device: {limits}"
    sentence = f"It costs {first.cost}. What helps: {first.finding.change.text}."
    word = "pending" if first.finding.limit else "inconclusive"
    return Headline(word, f"{where}{first.finding.what}", sentence, (counts,))


def _highlights(found: Explained) -> list[Highlight]:
    """Speed-up, drop and fidelity, if they are known."""
    rows = []
    if speedup := found.speedup:
        label = f"as fast as {found.baseline}"
        rows.append(Highlight(figures.times(speedup.value), label, speedup.evidence))
    if drop := found.drop:
        metric = f" in {found.accuracy.metric}" if found.accuracy else ""
        rows.append(Highlight(dropped(found.accuracy, drop.value), f"drop{metric}", drop.evidence))
    if outputs := found.fidelity:
        of = outputs.where or "the outputs"
        label = f"SQNR of {figures.name(of)} to {spelled(outputs.reference)}"
        rows.append(Highlight(_sqnr(outputs), label, outputs.evidence))
    return rows


def of_report(report: Report) -> list[FindingRow]:
    """The findings of a build. If its report has none, as one of an older optkit, those that need
    no times of layers; none if its recipe does not validate."""
    if report.findings is not None:
        return [FindingRow(cost(report.result.accuracy, one), one) for one in report.findings]
    try:
        recipe = Recipe.of_record(report.provenance.recipe)
    except ValidationError:
        return []
    found = explain(Subject(report, recipe, None))
    return [FindingRow(cost(report.result.accuracy, one), one) for one in found.findings]


def to_html(found: Explained) -> str:
    parts = _parts(found)
    machine = found.build.machine if found.build else None
    return render(
        "explanation.html",
        found=found,
        parts=parts,
        headline=headline(parts),
        highlights=_highlights(found),
        about=[device(found.target, machine), *described(found.build), found.artifact],
    )
