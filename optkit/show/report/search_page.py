"""A search for the best assignment as one HTML page: the Pareto front, as a drawing and a table,
and the cost of quantizing each group of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import PurePath

from optkit.facts.documents.result import Result
from optkit.facts.documents.tune import FrontPoint, SearchBudget, Tune
from optkit.facts.evidence import Evidence
from optkit.show.report import figures, view
from optkit.show.report.drawing.scatter import Scatter, ScatterPoint, scatter
from optkit.show.report.html import render, render_alone
from optkit.show.report.layers import Cell, noise

_SHARES = (0.02, 0.05, 0.1, 0.25)  # of the noise: where the shades of the heat map begin


@dataclass(frozen=True)
class CandidateRow:
    """One point of the front."""

    point: ScatterPoint
    sqnr: str
    drop: str
    spread: str
    quantized: str
    landed: str


@dataclass(frozen=True)
class LayerGroupRow:
    """Layers that read the same values, and what quantizing them alone costs."""

    layers: str
    precision: str
    sqnr: Cell
    share: Cell
    became: str


def to_html(tune: Tune) -> str:
    """Render a search that produced an artifact."""
    assert tune.result is not None and tune.artifact is not None
    candidates = front(tune)
    return render(
        "search.html",
        tune=tune,
        headline=headline(tune, tune.result),
        candidates=candidates,
        plot=_plot(candidates),
        groups=groups(tune),
        budget=_limits(tune.budget),
        work=dict(tune.search or ()),
        report=f"../{PurePath(tune.artifact).name}/report.html",
    )


def headline(tune: Tune, result: Result) -> view.Headline:
    """What to ship: the winner, or the baseline."""
    if tune.recommendation is None:
        return view.headline(result)
    return view.advised(tune.recommendation, result)


def _limits(budget: SearchBudget | None) -> list[tuple[str, str]]:
    """The limits that the budget has."""
    if budget is None:
        return []
    limits: tuple[tuple[str, float | None, Callable[[float], str]], ...] = (
        ("drop, at most", budget.max_drop, figures.percent),
        ("SQNR, at least", budget.min_sqnr, figures.decibels),
        ("latency, at most", budget.max_latency_ms, figures.ms),
        ("size, at most", budget.max_bytes, figures.size),
    )
    return [(label, show(limit)) for label, limit, show in limits if limit is not None]


def to_svg(tune: Tune) -> str:
    """The front alone."""
    absent = "No drawing: it needs two candidates that differ from the reference."
    return render_alone("scatter", _plot(front(tune)), width=640, height=322, absent=absent)


def _plot(candidates: Sequence[CandidateRow]) -> Scatter | None:
    points = [one.point for one in candidates if one.point.score < inf]
    return scatter(points, "SQNR", figures.decibels)


def front(tune: Tune) -> list[CandidateRow]:
    """What no other trial beats, fastest first."""
    known = tune.evidence.latency_ms if tune.evidence else Evidence.PREDICTED
    return [_candidate(number, point, known) for number, point in enumerate(tune.front, 1)]


def _candidate(number: int, point: FrontPoint, known: Evidence) -> CandidateRow:
    drop = point.fresh and point.fresh.drop
    name = f"{point.quantized} layers in {point.precision}"
    score = inf if point.sqnr_db is None else point.sqnr_db
    return CandidateRow(
        ScatterPoint(number, name, "", point.latency_ms, score, point.bytes, known, point.chosen),
        "equal" if point.sqnr_db is None else figures.decibels(point.sqnr_db),
        figures.percent(drop.value) if drop else figures.NONE,
        figures.span(drop.ci95, figures.percent) if drop else "",
        name,
        f"{point.landed} of {point.planned}" if point.planned else figures.NONE,
    )


def groups(tune: Tune) -> list[LayerGroupRow]:
    """What costs most first."""
    return [
        LayerGroupRow(
            ", ".join(row.layers), row.precision, noise(row.sqnr_db), _share(row.share), row.chosen
        )
        for row in tune.layers
    ]


def _share(share: float) -> Cell:
    return Cell(figures.percent(share), share, sum(share > limit for limit in _SHARES))
