"""The time to the first token over the load of the recommended devices: where it rises, the queue
begins to grow."""

from __future__ import annotations

from itertools import pairwise
from math import log10

from optkit.facts.documents.serving_plan import ServingPlan
from optkit.show.report import figures
from optkit.show.report.drawing.axes import LinearAxis, LogAxis, Tick
from optkit.show.report.drawing.scatter import Mark, Scatter, Segment, ends, named
from optkit.show.report.serving_advice import chosen, devices_in_words

_RADIUS = 5.0


def load_curve(plan: ServingPlan) -> Scatter | None:
    """The drawing; None for less than two loads with a stable queue."""
    points = [
        (one.requests_per_s, one.ttft_ms)
        for one in plan.loads
        if one.ttft_ms is not None and one.ttft_ms > 0
    ]
    if len(points) < 2:
        return None
    limit = plan.limits.ttft_ms
    times = [log10(time) for time in (*(t for _, t in points), *([limit] if limit else []))]
    x = LogAxis(*(10.0**end for end in ends(times, 0.28, 0.15)))
    y = LinearAxis(*ends([load for load, _ in points], 0.15, 0.15))
    dots = [
        Mark(
            x.at(time),
            y.at(load),
            _RADIUS,
            str(number),
            f"{figures.number(load)} requests per second: {figures.ms(time)}",
            "predicted",
            True,
            load == plan.traffic.requests_per_s,
        )
        for number, (load, time) in enumerate(points, 1)
    ]
    names = [f"{figures.number(load)}/s, {figures.ms(time)}" for load, time in points]
    what = f"time to the first token (p{plan.limits.percentile:g})"
    return Scatter(
        named(names, dots),
        tuple(Segment(a.at, a.height, b.at, b.height) for a, b in pairwise(dots)),
        x.ticks(figures.ms),
        y.ticks(figures.number),
        "requests per second",
        f"{what}, logarithmic",
        f"{what} over the load of {devices_in_words(chosen(plan.results)[0])}: {'; '.join(names)}",
        frozenset(range(1, len(dots) + 1)),
        figures.number,
        limit=None if limit is None else Tick(x.at(limit), f"limit {figures.ms(limit)}"),
    )
