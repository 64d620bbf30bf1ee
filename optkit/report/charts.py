"""The numbers behind the report's drawings: positions in percent of the width, so that the template
draws them as SVG whose text keeps its size on a phone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

import numpy as np

from optkit.report import figures, view

_BINS = 60
_SHOWN = 0.995  # share of the runs inside the axis; the rest is counted beside it


@dataclass(frozen=True)
class Tick:
    at: float  # percent of the width
    text: str


@dataclass(frozen=True)
class Bar:
    at: float
    width: float
    height: float  # percent of the panel


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


def histogram(report: Mapping[str, Any]) -> Histogram | None:
    """Latency distributions of baseline and candidate; None unless something was measured."""
    result = report["result"]
    base = result["baseline"] or {"latency": None, "precision": ""}
    sides = [
        ("baseline", base["precision"], base["latency"]),
        ("engine", result["precision"], result["latency"]),
    ]
    found = [
        (css, label, latency, np.asarray(report["latency_samples"][css]))
        for css, label, latency in sides
        if latency is not None and report["latency_samples"][css]
    ]
    if not found:
        return None
    low = min(float(samples.min()) for *_, samples in found)
    high = max(float(np.quantile(samples, _SHOWN)) for *_, samples in found)
    axis = _Axis(low, max(high, low * 1.02 + 1e-9))
    return Histogram(tuple(_panel(axis, *one) for one in found), axis.ticks(figures.ms))


def _panel(axis: _Axis, css: str, label: str, latency: Any, samples: np.ndarray) -> Panel:
    counts, edges = np.histogram(samples, bins=_BINS, range=(axis.low, axis.high))
    top = max(int(counts.max()), 1)
    bars = tuple(
        Bar(axis.at(float(edge)), 100 / _BINS, round(100 * int(n) / top, 2))
        for n, edge in zip(counts, edges[:-1], strict=True)
        if n
    )
    low, high = latency["ci95_ms"] or (latency["p50_ms"], latency["p50_ms"])
    return Panel(
        label, css, bars, Tick(axis.at(latency["p50_ms"]), figures.ms(latency["p50_ms"])),
        axis.at(low), axis.at(high), samples.size, int((samples > axis.high).sum()),
    )  # fmt: skip


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
    mark: Tick | None = None


def bands(result: Mapping[str, Any]) -> Spans | None:
    """Predicted latencies with their bands; None unless something is predicted."""
    base = result["baseline"] or {"latency": None, "precision": ""}
    sides = [
        ("baseline", base["precision"], base["latency"]),
        ("engine", result["precision"], result["latency"]),
    ]
    found = [(css, label, side) for css, label, side in sides if side and side["band"]]
    if not found:
        return None
    axis = _Axis(0.0, max(side["band"][1] for *_, side in found) * 1.05)
    spans = tuple(
        Span(label, css, axis.at(side["band"][0]), axis.at(side["band"][1]),
             Tick(axis.at(side["p50_ms"]), figures.ms(side["p50_ms"])))
        for css, label, side in found
    )  # fmt: skip
    return Spans(spans, axis.ticks(figures.ms))


def drop(report: Mapping[str, Any]) -> Spans | None:
    """The drop's interval against its limit and zero; None without an interval."""
    seen = report["result"]["drop"]
    if seen is None or seen["ci95"] is None:
        return None
    limit = next((row["limit"] for row in report["gates"] if row["gate"] == "max_drop"), None)
    low, high = seen["ci95"]
    ends = [low, high, 0.0, *([] if limit is None else [limit])]
    margin = (max(ends) - min(ends)) * 0.08 or 0.01
    axis = _Axis(min(ends) - margin, max(ends) + margin)
    show = view.unit(report["result"])
    span = Span("drop", "engine", axis.at(low), axis.at(high),
                Tick(axis.at(seen["value"]), show(seen["value"])))  # fmt: skip
    mark = None if limit is None else Tick(axis.at(limit), f"limit {show(limit)}")
    return Spans((span,), axis.ticks(show), mark)


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float

    def at(self, value: float) -> float:
        """Percent of the width, clamped to it."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 3)

    def ticks(self, show: Any) -> tuple[Tick, ...]:
        """Three to seven round values."""
        step = _round_step((self.high - self.low) / 6)
        values = range(ceil(self.low / step), floor(self.high / step) + 1)
        return tuple(Tick(self.at(i * step), show(i * step)) for i in values)


def _round_step(step: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** floor(log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step)
