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

from optkit.show.report import figures
from optkit.show.report.drawing.axes import LinearAxis, LogAxis, Tick

_SMALL, _LARGE = 5.0, 13.0  # radii, pixels


@dataclass(frozen=True)
class ScatterPoint:
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
class PointLabel:
    """What names a point beside it, where it covers no other label and no point: an offset in
    pixels from the point, and which end of the text is there."""

    text: str
    right: float
    down: float
    anchor: Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Mark:
    """A point. `number`: how the table names it, empty if it does not; `wide`, `narrow`: its label
    on a page of either width, None if there is no room for it."""

    at: float
    height: float  # percent of the panel
    radius: float
    number: str
    told: str
    known: str
    best: bool
    chosen: bool
    wide: PointLabel | None = None
    narrow: PointLabel | None = None


@dataclass(frozen=True)
class Segment:
    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Scatter:
    """Better points are further left, higher up, and smaller. Lines join the points of a group that
    no other point beats."""

    dots: tuple[Mark, ...]
    lines: tuple[Segment, ...]
    ticks: tuple[Tick, ...]
    levels: tuple[Tick, ...]
    up: str
    across: str
    told: str
    best: frozenset[int]
    show: Callable[[float], str]
    whiskers: tuple[Segment, ...] = ()
    limit: Tick | None = None  # of the latency


def unbeaten(points: Sequence[ScatterPoint], *, lower_is_better: bool) -> set[int]:
    """Numbers of the points that no other one of their group beats."""
    sign = -1.0 if lower_is_better else 1.0

    def costs(point: ScatterPoint) -> tuple[float, float, float]:
        size = inf if point.bytes is None else float(point.bytes)
        return point.latency_ms, -sign * point.score, size

    def beats(one: ScatterPoint, other: ScatterPoint) -> bool:
        pairs = list(zip(costs(one), costs(other), strict=True))
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    return {
        point.number
        for point in points
        if not any(other.group == point.group and beats(other, point) for other in points)
    }


def scatter(
    points: Sequence[ScatterPoint],
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
    y = LinearAxis(*ends(values, 0.15, 0.15))
    up = LinearAxis(y.high, y.low) if lower_is_better else y
    radii = _radii([point.bytes or 0 for point in points])
    dots = tuple(
        Mark(
            x.at(point.latency_ms),
            up.at(point.score),
            radius,
            str(point.number),
            f"{point.name}: {figures.ms(point.latency_ms)}, "
            f"{show(point.score)}, {figures.size(point.bytes)}",
            point.known,
            point.number in best,
            point.chosen,
        )
        for point, radius in zip(points, radii, strict=True)
    )
    dots = named([point.name for point in points], dots)
    names = (f"{point.number} {point.name}" for point in points if point.number in best)
    told = f"{len(points)} builds by latency and {metric}; not beaten: {', '.join(names)}"
    worse = ", lower is better and drawn higher" if lower_is_better else ""
    levels = tuple(Tick(up.at(value), show(value)) for value in y.values(5))
    return Scatter(
        dots,
        _joined(points, dots),
        x.ticks(figures.ms),
        levels,
        f"{metric}{worse}",
        "latency, logarithmic; area: size",
        told,
        frozenset(best),
        show,
    )


def _radii(sizes: Sequence[int]) -> list[float]:
    """Of marks whose area grows with the size."""
    largest = max(sizes) or 1
    return [round(_SMALL + (_LARGE - _SMALL) * sqrt(size / largest), 1) for size in sizes]


# pixels of the panel; the widths at which a page shows names, and at which it shows numbers
_WIDE, _NARROW, _HEIGHT = (1_240, 1_240), (300, 1_240), 260
_LETTER, _LINE = 7.3, 15  # pixels of a letter and a line of the labels' font

Box = tuple[float, float, float, float]  # left, top, right, bottom


def named(names: Sequence[str], dots: Sequence[Mark]) -> tuple[Mark, ...]:
    """The points with labels. A wide page shows the names of the first points, or their numbers
    where a name has no room; a narrow page shows numbers. A point without room has no label."""
    numbers = [[dot.number] if dot.number else [] for dot in dots]
    texts = [[*names[place : place + 1], *own] for place, own in enumerate(numbers)]
    wide, narrow = _labels(dots, texts, _WIDE), _labels(dots, numbers, _NARROW)
    return tuple(
        replace(dot, wide=one, narrow=other)
        for dot, one, other in zip(dots, wide, narrow, strict=True)
    )


def _labels(
    dots: Sequence[Mark], texts: Sequence[Sequence[str]], widths: tuple[float, float]
) -> list[PointLabel | None]:
    """For each point, in their order, the first of its texts for which a panel of any width between
    two has room at one of six places."""

    def box(dot: Mark, left: float, right: float, top: float, bottom: float) -> tuple[Box, ...]:
        """A rectangle beside a point, at both widths."""
        y = (100 - dot.height) * _HEIGHT / 100
        middles = (dot.at * width / 100 for width in widths)
        return tuple((x + left, y + top, x + right, y + bottom) for x in middles)

    taken = [box(dot, -dot.radius, dot.radius, -dot.radius, dot.radius) for dot in dots]
    found: list[PointLabel | None] = []
    for own, dot in zip(texts, dots, strict=True):
        found.append(None)
        for label, left in (place for text in own for place in _places(text, dot.radius)):
            bottom = label.down + 3
            free = box(dot, left, left + _LETTER * len(label.text), bottom - _LINE, bottom)
            inside = all(
                one[0] >= 0 and one[2] <= width for one, width in zip(free, widths, strict=True)
            )
            if inside and not any(_meet(free, one) for one in taken):
                taken.append(free)
                found[-1] = label
                break
    return found


def _meet(one: Sequence[Box], other: Sequence[Box]) -> bool:
    """Whether two rectangles, each given at both widths, overlap at some width between. Their
    distance is linear in the width: they are apart if one is on the same side at both widths."""
    (_, top, _, bottom), (_, upper, _, lower) = one[0], other[0]
    sides = {
        -1 if a[2] <= b[0] else 1 if b[2] <= a[0] else 0 for a, b in zip(one, other, strict=True)
    }
    return top < lower and upper < bottom and sides not in ({-1}, {1})


def _places(text: str, radius: float) -> tuple[tuple[PointLabel, float], ...]:
    """The places of a text beside its point, the best one first, each with the offset of its left
    end: to the right, to the left, above, below, and at two corners."""
    length, away = _LETTER * len(text), radius + 5
    return (
        (PointLabel(text, away, 4, "start"), away),
        (PointLabel(text, -away, 4, "end"), -away - length),
        (PointLabel(text, 0, -away, "middle"), -length / 2),
        (PointLabel(text, 0, away + 10, "middle"), -length / 2),
        (PointLabel(text, away, -away, "start"), away),
        (PointLabel(text, -away, away + 10, "end"), -away - length),
    )


def _joined(points: Sequence[ScatterPoint], dots: Sequence[Mark]) -> tuple[Segment, ...]:
    found = []
    for group in dict.fromkeys(point.group for point in points):
        own = sorted(
            (
                dot
                for point, dot in zip(points, dots, strict=True)
                if point.group == group and dot.best
            ),
            key=lambda dot: dot.at,
        )
        found += [
            Segment(one.at, one.height, other.at, other.height) for one, other in pairwise(own)
        ]
    return tuple(found)


def ends(values: Sequence[float], before: float, after: float) -> tuple[float, float]:
    """Of an axis with room at both ends, as shares of the values' span."""
    low, high = min(values), max(values)
    span = high - low or abs(high) * 0.2 or 0.2
    return low - before * span, high + after * span
