"""Pareto plots: latency against accuracy, size as area, and which points no other beats.

A point is beaten by another of its group (the same device) that is no worse in latency, score and
size, and better in one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log10, sqrt
from typing import Literal

from optkit.report import figures
from optkit.report.drawing.axes import Axis, LogAxis, Tick

_SMALL, _LARGE = 5.0, 13.0  # radii, pixels


@dataclass(frozen=True)
class Point:
    """One build or candidate. `number` is how drawing and table name it."""

    number: int
    name: str
    group: str
    latency_ms: float
    score: float
    bytes: int | None
    known: str  # how its latency is known
    chosen: bool = False


@dataclass(frozen=True)
class Label:
    """A point's name beside it, where it covers no other name and no point: an offset in pixels
    from the point, and which end of the text is there."""

    text: str
    right: float
    down: float
    anchor: Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Mark:
    at: float
    height: float  # percent of the panel
    radius: float
    label: str
    told: str
    known: str
    best: bool
    chosen: bool
    name: Label | None = None  # None: no room; the number beside it names it in the table


@dataclass(frozen=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Scatter:
    """Better points are further left, higher up, and smaller. Lines join the points of a group that
    no other point beats."""

    dots: tuple[Mark, ...]
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    levels: tuple[Tick, ...]
    up: str
    across: str
    told: str
    best: frozenset[int]
    show: Callable[[float], str]
    whiskers: tuple[Line, ...] = ()
    limit: Tick | None = None  # of the latency


def unbeaten(points: Sequence[Point], *, lower_is_better: bool) -> set[int]:
    """Numbers of the points that no other one of their group beats."""
    sign = -1.0 if lower_is_better else 1.0

    def costs(point: Point) -> tuple[float, float, float]:
        size = inf if point.bytes is None else float(point.bytes)
        return point.latency_ms, -sign * point.score, size

    def beats(one: Point, other: Point) -> bool:
        pairs = list(zip(costs(one), costs(other), strict=True))
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    return {
        point.number
        for point in points
        if not any(other.group == point.group and beats(other, point) for other in points)
    }


def scatter(
    points: Sequence[Point],
    metric: str,
    show: Callable[[float], str],
    *,
    lower_is_better: bool = False,
) -> Scatter | None:
    """The drawing; None for less than two points. `show`: a score as text."""
    if len(points) < 2:
        return None
    best = unbeaten(points, lower_is_better=lower_is_better)
    times = [log10(point.latency_ms) for point in points]
    values = [point.score for point in points]
    # the labels of the scores stand on the left, also on a phone
    x = LogAxis(*(10.0**end for end in ends(times, 0.28, 0.1)))
    y = Axis(*ends(values, 0.15, 0.15))
    up = Axis(y.high, y.low) if lower_is_better else y
    largest = max((point.bytes or 0 for point in points), default=0) or 1
    dots = tuple(
        Mark(
            x.at(point.latency_ms), up.at(point.score),
            round(_SMALL + (_LARGE - _SMALL) * sqrt((point.bytes or 0) / largest), 1),
            str(point.number), f"{point.name}: {figures.ms(point.latency_ms)}, "
            f"{show(point.score)}, {figures.size(point.bytes)}",
            point.known, point.number in best, point.chosen,
        )
        for point in points
    )  # fmt: skip
    dots = named([point.name for point in points], dots)
    names = (f"{point.number} {point.name}" for point in points if point.number in best)
    told = f"{len(points)} builds by latency and {metric}; not beaten: {', '.join(names)}"
    worse = ", lower is better and drawn higher" if lower_is_better else ""
    levels = tuple(Tick(up.at(value), show(value)) for value in y.values(5))
    return Scatter(
        dots, _joined(points, dots), x.ticks(figures.ms), levels,
        f"{metric}{worse}", "latency, logarithmic; area: size", told, frozenset(best), show,
    )  # fmt: skip


_WIDTH, _HEIGHT = 1_240, 260  # pixels of the panel on a wide page; narrower ones show numbers
_LETTER, _LINE = 7.3, 15  # pixels of a letter and a line of the labels' font

Box = tuple[float, float, float, float]  # left, top, right, bottom


def named(names: Sequence[str], dots: Sequence[Mark]) -> tuple[Mark, ...]:
    """With the names for which there is room, in the order of the points: to the right of a point,
    else to the left, above, below, or at a corner. The last points may have no names."""
    places = [(dot.at * _WIDTH / 100, (100 - dot.height) * _HEIGHT / 100) for dot in dots]
    taken = [
        (x - dot.radius, y - dot.radius, x + dot.radius, y + dot.radius)
        for (x, y), dot in zip(places, dots, strict=True)
    ]
    placed = []
    for name, dot, (x, y) in zip(names, dots, places, strict=False):
        length, away = _LETTER * len(name), dot.radius + 5
        for label, left in (
            (Label(name, away, 4, "start"), x + away),
            (Label(name, -away, 4, "end"), x - away - length),
            (Label(name, 0, -away, "middle"), x - length / 2),
            (Label(name, 0, away + 10, "middle"), x - length / 2),
            (Label(name, away, -away, "start"), x + away),
            (Label(name, -away, away + 10, "end"), x - away - length),
        ):
            bottom = y + label.down + 3
            box = (left, bottom - _LINE, left + length, bottom)
            if left >= 0 and box[2] <= _WIDTH and not any(_overlap(box, one) for one in taken):
                taken.append(box)
                placed.append(replace(dot, name=label))
                break
        else:
            placed.append(dot)
    return (*placed, *dots[len(names) :])


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _joined(points: Sequence[Point], dots: Sequence[Mark]) -> tuple[Line, ...]:
    found = []
    for group in dict.fromkeys(point.group for point in points):
        own = sorted(
            (dot for point, dot in zip(points, dots, strict=True)
             if point.group == group and dot.best),
            key=lambda dot: dot.at,
        )  # fmt: skip
        found += [Line(one.at, one.height, other.at, other.height) for one, other in pairwise(own)]
    return tuple(found)


def ends(values: Sequence[float], before: float, after: float) -> tuple[float, float]:
    """Of an axis with room at both ends, as shares of the values' span."""
    low, high = min(values), max(values)
    span = high - low or abs(high) * 0.2 or 0.2
    return low - before * span, high + after * span
