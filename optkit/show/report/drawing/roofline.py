"""The roofline of a plan: operations per byte against operations per second, both logarithmic.

A target has a slope (its bandwidth) and one roof per precision (its dense peak); a point is a
predicted call or step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from optkit.craft.prediction.graph_work import multiplies_in
from optkit.facts.documents.plan import Plan, PlannedLatency, PlanRow
from optkit.facts.precisions import precision
from optkit.ground.devices import target as find_target
from optkit.show.report import figures
from optkit.show.report.drawing.axes import LogAxis, Tick

_COLOURS = 6  # of drawing.css: target0, target1, ...
_LINE = 3.0  # percent of the panel, from one label to the next


@dataclass(frozen=True)
class RooflinePoint:
    at: float
    height: float  # percent of the panel
    css: str = ""
    told: str = ""


@dataclass(frozen=True)
class Roof:
    """From `start` up to `corner`, and level to the right edge."""

    label: str
    css: str
    start: RooflinePoint
    corner: RooflinePoint
    label_height: float


@dataclass(frozen=True)
class Roofline:
    roofs: tuple[Roof, ...]
    points: tuple[RooflinePoint, ...]
    ticks: tuple[Tick, ...]
    levels: tuple[Tick, ...]
    up: str
    across: str
    told: str


@dataclass(frozen=True)
class _Peak:
    """`dtypes` of `target` that share a peak (operations per second), and its bandwidth (bytes per
    second)."""

    target: str
    dtypes: tuple[str, ...]
    rate: float
    bandwidth: float

    @property
    def intensity(self) -> float:
        """Operations per byte from which on the peak is the limit."""
        return self.rate / self.bandwidth


def roofline(plan: Plan) -> Roofline:
    """The drawing of an object of optkit.plan/v1 that has one row with figures at least."""
    rows = [row for row in plan.results if row.latency]
    calls = [
        (row, call)
        for row in rows
        for call in row.latency
        if call.operations and call.bytes  # a logarithm has no place for others
    ]
    peaks = _peaks(rows)
    x = _decades([_intensity(call) for _, call in calls] + [peak.intensity for peak in peaks])
    y = _decades([_rate(call) for _, call in calls] + [peak.rate for peak in peaks])
    names = list(dict.fromkeys(row.target for row in rows))
    colours = {name: f"target{index % _COLOURS}" for index, name in enumerate(names)}
    points = tuple(
        RooflinePoint(
            x.at(_intensity(call)), y.at(_rate(call)), colours[row.target], _told(row, call)
        )
        for row, call in calls
    )
    return Roofline(
        _roofs(peaks, x, y, colours),
        points,
        x.ticks(lambda value: f"{value:g}"),
        y.ticks(lambda value: f"{value / 1e12:g}"),
        "TFLOP/s (TOP/s), predicted",
        "operations per byte",
        f"{len(points)} predictions on {', '.join(names)}",
    )


def _intensity(call: PlannedLatency) -> float:
    """Operations per byte."""
    return float(call.operations / call.bytes)


def _rate(call: PlannedLatency) -> float:
    """Operations per second."""
    return float(call.operations / call.p50_ms * 1e3)


def _told(row: PlanRow, call: PlannedLatency) -> str:
    return (
        f"{row.target} {row.precision} batch {call.batch}: {figures.ms(call.p50_ms)}, "
        f"{figures.span(call.band, figures.ms)}, predicted"
    )


def _peaks(rows: Sequence[PlanRow]) -> list[_Peak]:
    """Each peak once, the highest first."""
    dtypes: dict[tuple[str, float, float], list[str]] = {}
    for row in rows:
        device = find_target(row.target)
        dtype = multiplies_in(precision(row.precision))
        peak = device.peak(dtype)
        if peak is not None and device.bandwidth is not None:
            dtypes.setdefault((device.name, peak, device.bandwidth), []).append(dtype)
    peaks = [
        _Peak(name, tuple(dict.fromkeys(of)), peak, bandwidth)
        for (name, peak, bandwidth), of in dtypes.items()
    ]
    return sorted(peaks, key=lambda peak: -peak.rate)


def _roofs(
    peaks: Sequence[_Peak], x: LogAxis, y: LogAxis, colours: Mapping[str, str]
) -> tuple[Roof, ...]:
    roofs: list[Roof] = []
    for peak in peaks:
        low = max(x.low, y.low / peak.bandwidth)
        height = y.at(peak.rate)
        label_height = min(height, roofs[-1].label_height - _LINE) if roofs else height
        roofs.append(
            Roof(
                f"{peak.target} {'/'.join(peak.dtypes)}",
                colours[peak.target],
                RooflinePoint(x.at(low), y.at(low * peak.bandwidth)),
                RooflinePoint(x.at(peak.intensity), height),
                label_height,
            )
        )
    return tuple(roofs)


def _decades(values: Sequence[float]) -> LogAxis:
    """Over whole powers of ten, one at least."""
    first, last = floor(log10(min(values))), ceil(log10(max(values)))
    return LogAxis(10.0**first, 10.0 ** max(last, first + 1))
