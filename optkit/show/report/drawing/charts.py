"""The drawings of one build: its latency, its scores, its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from optkit.facts.documents.report import Report
from optkit.facts.documents.result import PrecisionFigures, Result
from optkit.facts.measurement import Latency, Score
from optkit.show.report import figures, view
from optkit.show.report.drawing.axes import LinearAxis, Tick
from optkit.show.report.layers import NodeRow
from optkit.show.report.titles import baseline_label, scored_beside

_BINS = 60
_SHOWN = 0.99  # share of the runs inside the axis; the rest is counted beside it
_ROUNDS = 4
_LABELS = 12  # percent of the width, left of what they label
_QUIET, _LOUD = 70.0, 10.0  # dB, the ends of the axis of noise


@dataclass(frozen=True)
class Bar:
    at: float
    width: float
    height: float  # percent of the panel
    css: str = ""


@dataclass(frozen=True)
class Panel:
    """The latencies of one model, on the axis that both share."""

    label: str
    css: str
    bars: tuple[Bar, ...]
    median: Tick
    low: float
    high: float
    runs: int
    beyond: int  # runs slower than the axis shows


@dataclass(frozen=True)
class Histogram:
    panels: tuple[Panel, ...]
    ticks: tuple[Tick, ...]
    told: str  # the drawing in words, as of every drawing here


def histogram(report: Report) -> Histogram | None:
    """Latency distributions of baseline and candidate; None unless something was measured."""
    runs = {"baseline": report.latency_samples.baseline, "engine": report.latency_samples.engine}
    found = [
        (side, side.latency, np.asarray(runs[side.css]))
        for side in _sides(report.result)
        if side.latency is not None and runs[side.css]
    ]
    if not found:
        return None
    low = min(float(samples.min()) for *_, samples in found)
    high = max(float(np.quantile(samples, _SHOWN)) for *_, samples in found)
    axis = LinearAxis(low, max(high, low * 1.02 + 1e-9))
    told = "; ".join(
        f"{side.label}: {samples.size:,} runs, median {figures.ms(latency.p50_ms)}, half of them "
        + " to ".join(figures.ms(float(q)) for q in np.quantile(samples, (0.25, 0.75)))
        for side, latency, samples in found
    )
    return Histogram(tuple(_panel(axis, *one) for one in found), axis.ticks(figures.ms), told)


@dataclass(frozen=True)
class _Side:
    css: str
    label: str
    latency: Latency | None
    accuracy: Score | None


def _sides(result: Result) -> list[_Side]:
    """Baseline and candidate."""
    base = result.baseline
    candidate = _Side("engine", str(result.precision), result.latency, result.accuracy)
    return [*([_drawn(base)] if base else []), candidate]


def _drawn(base: PrecisionFigures) -> _Side:
    return _Side("baseline", base.precision, base.latency, base.accuracy)


def _panel(axis: LinearAxis, side: _Side, latency: Latency, samples: np.ndarray) -> Panel:
    counts, edges = np.histogram(samples, bins=_BINS, range=(axis.low, axis.high))
    top = max(int(counts.max()), 1)
    bars = tuple(
        Bar(axis.at(float(edge)), 100 / _BINS, round(100 * int(n) / top, 2))
        for n, edge in zip(counts, edges[:-1], strict=True)
        if n
    )
    median = latency.p50_ms
    low, high = latency.ci95_ms or (median, median)
    return Panel(
        side.label,
        side.css,
        bars,
        Tick(axis.at(median), figures.ms(median)),
        axis.at(low),
        axis.at(high),
        samples.size,
        int((samples > axis.high).sum()),
    )


@dataclass(frozen=True)
class Dot:
    at: float
    height: float  # percent of the panel
    css: str


@dataclass(frozen=True)
class Course:
    """The median of each round, in order: a machine that slows down shows as a step or a slope."""

    dots: tuple[Dot, ...]
    ticks: tuple[Tick, ...]
    told: str


def course(report: Report) -> Course | None:
    """Rounds of baseline and candidate; None unless both have four of them at least."""
    runs, rounds = report.latency_samples, report.latency_rounds
    sides = {"baseline": (runs.baseline, rounds.baseline), "engine": (runs.engine, rounds.engine)}
    if any(count < _ROUNDS or len(samples) % count for samples, count in sides.values()):
        return None
    medians = {
        side: np.median(np.reshape(samples, (count, -1)), axis=1)
        for side, (samples, count) in sides.items()
    }
    axis = LinearAxis(0.0, max(float(one.max()) for one in medians.values()) * 1.05)
    ticks = tuple(Tick(axis.at(value), figures.ms(value)) for value in axis.values(4) if value)
    dots = tuple(
        Dot(
            round(_LABELS + (99 - _LABELS) * index / (values.size - 1), 2),
            axis.at(float(value)),
            side,
        )
        for side, values in medians.items()
        for index, value in enumerate(values)
    )
    told = "; ".join(
        f"{'candidate' if side == 'engine' else side}: medians of {values.size} rounds, "
        f"{figures.ms(float(values.min()))} to {figures.ms(float(values.max()))}"
        for side, values in medians.items()
    )
    return Course(dots, ticks, told)


@dataclass(frozen=True)
class Strip:
    """One bar per considered node in the order of the graph: the taller, the noisier alone."""

    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    told: str


def strip(rows: Sequence[NodeRow]) -> Strip | None:
    """Landing and noise at one look; None where neither is known."""
    known = [row for row in rows if row.landed is not None or row.alone.text]
    if not known:
        return None
    axis = LinearAxis(_QUIET, _LOUD)  # fewer decibels, more noise
    wide = (100 - _LABELS) / len(rows)
    bars = tuple(_bar(row, axis, _LABELS + index * wide, wide) for index, row in enumerate(rows))
    noisy = [row for row in rows if row.alone.value is not None]
    ticks = tuple(Tick(axis.at(level), f"{level:.0f} dB") for level in (40.0, 20.0) if noisy)
    return Strip(bars, ticks, _summary(rows, noisy))


def _bar(row: NodeRow, axis: LinearAxis, left: float, wide: float) -> Bar:
    """As high as the node is noisy, in the colour of its landing."""
    return Bar(
        round(left, 3),
        round(max(wide * 0.8, wide - 0.4), 3),
        max(axis.at(_QUIET if row.alone.value is None else row.alone.value), 6.0),
        "" if row.landed is None else "engine" if row.landed else "missed",
    )


def _summary(rows: Sequence[NodeRow], noisy: Sequence[NodeRow]) -> str:
    planned = [row for row in rows if row.landed is not None]
    text = f"{sum(bool(row.landed) for row in planned)} of {len(planned)} planned nodes landed"
    if noisy:
        worst = min(noisy, key=lambda row: row.alone.value or 0.0)
        text += f"; the noisiest alone is {figures.name(worst.name)} at {worst.alone.text} dB"
    return text


@dataclass(frozen=True)
class Span:
    """An interval with a marked point."""

    label: str
    css: str
    low: float
    high: float
    point: Tick


@dataclass(frozen=True)
class Spans:
    spans: tuple[Span, ...]
    ticks: tuple[Tick, ...]
    told: str
    mark: Tick | None = None


def bands(result: Result) -> Spans | None:
    """Predicted latencies with their bands; None unless something is predicted."""
    found = [
        (side, side.latency.p50_ms, side.latency.band)
        for side in _sides(result)
        if side.latency is not None and side.latency.band is not None
    ]
    if not found:
        return None
    axis = LinearAxis(0.0, max(band[1] for *_, band in found) * 1.05)
    spans = tuple(
        Span(
            side.label,
            side.css,
            axis.at(band[0]),
            axis.at(band[1]),
            Tick(axis.at(value), figures.ms(value)),
        )
        for side, value, band in found
    )
    told = "; ".join(
        f"{side.label}: predicted {figures.ms(value)}, band {figures.span(band, figures.ms)}"
        for side, value, band in found
    )
    return Spans(spans, axis.ticks(figures.ms), told)


def scores(result: Result) -> Spans | None:
    """The score of baseline, candidate and references with their intervals; None without one."""
    *base, candidate = _sides(result)
    label = scored_beside(result) or baseline_label(result)
    base = [replace(one, label=str(label)) for one in base]
    sides = [*base, *map(_drawn, result.references), candidate]
    found = [(side, side.accuracy) for side in sides if side.accuracy is not None]
    if not found:
        return None
    show = figures.percent if found[-1][1].proportion else figures.number
    ends = [end for _, score in found for end in score.ci95]
    margin = (max(ends) - min(ends)) * 0.08 or abs(ends[0]) * 0.01 or 0.01
    axis = LinearAxis(min(ends) - margin, max(ends) + margin)
    spans = tuple(
        Span(
            side.label,
            side.css,
            axis.at(score.ci95[0]),
            axis.at(score.ci95[1]),
            Tick(axis.at(score.value), show(score.value)),
        )
        for side, score in found
    )
    told = "; ".join(
        f"{side.label}: {show(score.value)}, 95 % interval {figures.span(score.ci95, show)}"
        for side, score in found
    )
    return Spans(spans, axis.ticks(show), told)


def drop(report: Report) -> Spans | None:
    """The drop's interval against its limit and zero; None without an interval."""
    seen = report.result.drop
    if seen is None or seen.ci95 is None:
        return None
    limit = next((row.limit for row in report.gates if row.gate == "max_drop"), None)
    low, high = seen.ci95
    ends = [low, high, 0.0, *([] if limit is None else [limit])]
    margin = (max(ends) - min(ends)) * 0.08 or 0.01
    axis = LinearAxis(min(ends) - margin, max(ends) + margin)
    show = view.unit(report.result)
    span = Span(
        "drop", "engine", axis.at(low), axis.at(high), Tick(axis.at(seen.value), show(seen.value))
    )
    mark = None if limit is None else Tick(axis.at(limit), f"limit {show(limit)}")
    told = f"drop {show(seen.value)}, 95 % interval {figures.span(seen.ci95, show)}"
    told += "" if mark is None else f", {mark.text}"
    return Spans((span,), axis.ticks(show), told, mark)
