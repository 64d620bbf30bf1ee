"""A search for the best assignment as one HTML page: the front, drawn and in a table, and what
quantizing each group of layers costs. It shows an object of optkit.tune/v1 (documents/tune.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import PurePath
from typing import Any

from optkit.report import details, figures, view
from optkit.report.drawing.scatter import Point, Scatter, scatter
from optkit.report.html import render, render_alone
from optkit.report.layers import Cell, noise

Json = Mapping[str, Any]

_SHARES = (0.02, 0.05, 0.1, 0.25)  # of the noise: where the shades of the heat map begin
_LIMITS = {
    "max_drop": ("drop, at most", figures.percent),
    "min_sqnr": ("SQNR, at least", figures.decibels),
    "max_latency_ms": ("latency, at most", figures.ms),
    "max_bytes": ("size, at most", figures.size),
}


@dataclass(frozen=True)
class Candidate:
    """One point of the front."""

    point: Point
    sqnr: str
    drop: str
    spread: str
    quantized: str
    landed: str


@dataclass(frozen=True)
class Group:
    """Layers that read the same values, and what quantizing them alone costs."""

    layers: str
    precision: str
    sqnr: Cell
    share: Cell
    became: str


def to_html(tune: Json) -> str:
    """Render the object of a search that came to an artifact."""
    candidates = front(tune)
    result = tune["result"]
    return render(
        "search.html",
        tune=tune,
        headline=view.headline(result),
        candidates=candidates,
        plot=_plot(candidates),
        groups=groups(tune),
        budget=[
            (label, show(tune["budget"][key]))
            for key, (label, show) in _LIMITS.items()
            if tune["budget"][key] is not None
        ],
        work=details.flat(tune["search"]),
        report=f"../{PurePath(tune['artifact']).name}/report.html",
    )  # fmt: skip


def to_svg(tune: Json) -> str:
    """The front alone."""
    absent = "No drawing: it needs two candidates that differ from the reference."
    return render_alone("scatter", _plot(front(tune)), width=640, height=322, absent=absent)


def _plot(candidates: Sequence[Candidate]) -> Scatter | None:
    points = [one.point for one in candidates if one.point.score < inf]
    return scatter(points, "SQNR", figures.decibels)


def front(tune: Json) -> list[Candidate]:
    """What no other trial beats, fastest first."""
    return [_candidate(tune, number, one) for number, one in enumerate(tune["front"], 1)]


def _candidate(tune: Json, number: int, one: Json) -> Candidate:
    drop = (one["fresh"] or {}).get("drop")
    name = f"{one['quantized']} layers in {one['precision']}"
    score = inf if one["sqnr_db"] is None else one["sqnr_db"]
    return Candidate(
        Point(number, name, "", one["latency_ms"], score, one["bytes"],
              tune["evidence"]["latency_ms"], one["chosen"]),
        "equal" if one["sqnr_db"] is None else figures.decibels(one["sqnr_db"]),
        figures.percent(drop["value"]) if drop else figures.NONE,
        figures.span(drop["ci95"], figures.percent) if drop else "",
        name,
        f"{one['landed']} of {one['planned']}" if one["planned"] else figures.NONE,
    )  # fmt: skip


def groups(tune: Json) -> list[Group]:
    """What costs most first."""
    return [
        Group(
            ", ".join(row["layers"]), row["precision"], noise(row["sqnr_db"]), _share(row["share"]),
            row["chosen"],
        )
        for row in tune["layers"]
    ]  # fmt: skip


def _share(share: float) -> Cell:
    return Cell(figures.percent(share), share, sum(share > limit for limit in _SHARES))
