"""Cost over latency of all targets of a plan, both logarithmic, with the calls that no other one
beats: the same drawing as latency against accuracy, with the intervals of its best points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from math import log10

from optkit.craft.prediction.economics import points
from optkit.facts.documents.plan import FrontPoint, Plan
from optkit.show.report import figures
from optkit.show.report.drawing.axes import LogAxis, Tick
from optkit.show.report.drawing.scatter import Mark, Scatter, Segment, ends, named

_BEST, _OTHER = 5.0, 2.0  # radii, pixels


def front(plan: Plan) -> Scatter | None:
    """The drawing; None for less than two calls that have a price."""
    best = list(plan.front or ())
    drawn = [*best, *_beaten(plan, best)]
    if not best or len(drawn) < 2:
        return None
    limit = plan.asked.latency_ms if plan.asked else None
    times, costs = ([point.band for point in best], [point.usd_band for point in best])
    x = _axis([*(point.p50_ms for point in drawn), *chain(*times)], 0.1, limit)
    y = _axis([*(point.usd_per_million for point in drawn), *chain(*costs)], 0.05)
    dots = [_mark(point, x, y, str(number)) for number, point in enumerate(best, 1)]
    dots += [_mark(point, x, y, "") for point in drawn[len(best) :]]
    return Scatter(
        named(list(map(name, best)), dots),
        tuple(Segment(a.at, a.height, b.at, b.height) for a, b in pairwise(dots[: len(best)])),
        x.ticks(figures.ms),
        y.ticks(figures.dollars),
        "US dollars per million, logarithmic",
        "latency, logarithmic",
        _told(len(drawn), best),
        frozenset(range(1, len(best) + 1)),
        figures.dollars,
        whiskers=tuple(line for point in best for line in _whiskers(point, x, y)),
        limit=None if limit is None else Tick(x.at(limit), f"limit {figures.ms(limit)}"),
    )


def _told(calls: int, best: Sequence[FrontPoint]) -> str:
    told = "; ".join(f"{name(point)}: {_figures(point)}" for point in best)
    return f"{calls} predicted calls; not beaten: {told}"


def _beaten(plan: Plan, best: Sequence[FrontPoint]) -> list[FrontPoint]:
    """The calls that are not of the front."""
    keys = set(map(_key, best))
    calls = ((row, call) for row in plan.results for call in row.latency)
    return [point for point in points(calls) if _key(point) not in keys]


def name(point: FrontPoint) -> str:
    """`2 × l4 int8, batch 64`."""
    several = f"{point.devices} × " if point.devices > 1 else ""
    return f"{several}{point.target} {point.precision}, batch {point.batch}"


def _key(point: FrontPoint) -> tuple[str, str, int]:
    return point.target, point.precision, point.batch


def _axis(
    values: Sequence[float], before: float, limit: float | None = None, after: float = 0.05
) -> LogAxis:
    """Over all values and the limit."""
    logs = [log10(value) for value in (*values, *([] if limit is None else [limit]))]
    low, high = ends(logs, before, after)
    return LogAxis(10.0**low, 10.0**high)


def _mark(point: FrontPoint, x: LogAxis, y: LogAxis, label: str) -> Mark:
    return Mark(
        x.at(point.p50_ms),
        y.at(point.usd_per_million),
        _BEST if label else _OTHER,
        label,
        f"{name(point)}: {_figures(point)}",
        point.evidence,
        bool(label),
        False,
    )


def _figures(point: FrontPoint) -> str:
    times = f"{figures.ms(point.p50_ms)} ({figures.span(point.band, figures.ms)})"
    costs = figures.span(point.usd_band, figures.dollars)
    return f"{times}, {figures.dollars(point.usd_per_million)} ({costs})"


def _whiskers(point: FrontPoint, x: LogAxis, y: LogAxis) -> tuple[Segment, Segment]:
    """The intervals of latency and cost."""
    at, height = x.at(point.p50_ms), y.at(point.usd_per_million)
    (left, right), (low, high) = map(x.at, point.band), map(y.at, point.usd_band)
    return Segment(left, height, right, height), Segment(at, low, at, high)
