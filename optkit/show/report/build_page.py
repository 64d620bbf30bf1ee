"""The page of a build: its report as HTML."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from optkit.facts.documents.report import Report
from optkit.ground import runtimes
from optkit.show.report import (
    coverage,
    details,
    explanation_page,
    figures,
    layers,
    output_table,
    view,
    worst,
)
from optkit.show.report.drawing import charts
from optkit.show.report.hotspots import hotspots
from optkit.show.report.html import render
from optkit.show.report.titles import baseline_label


def to_html(report: Report) -> str:
    engine = report.result.engine
    moves_data = runtimes.backend(engine.backend).traits.moves_data if engine else None
    ours, theirs = (
        layers.layers(side, moves_data) for side in (report.layers.engine, report.layers.baseline)
    )
    nodes = layers.nodes(report, ours, theirs)
    islands = report.cast.get("islands")
    result, provenance, finished = report.result, report.provenance, report.provenance.finished
    base = baseline_label(result) or "baseline"
    return render(
        "build.html",
        report=report,
        result=result,
        headline=view.headline(result),
        highlights=view.highlights(result),
        comparison=view.comparison(result),
        outputs=output_table.outputs(result.fidelity),
        outputs_head=output_table.HEAD,
        marks=view.marks(result),
        measured=figures.measured(result.latency),
        suspicions=view.suspicions(result),
        coverage=coverage.told(result),
        losses=view.losses(result.sizes),
        scores=charts.scores(result),
        drop=charts.drop(report),
        histogram=charts.histogram(report),
        course=charts.course(report),
        bands=charts.bands(result),
        drawings=worst.drawings(report.worst, base, result.precision or ""),
        timings=details.timings(report),
        phases=details.phases(result),
        machine=details.machine(report.conditions),
        nodes=layers.by_need(nodes),
        findings=explanation_page.of_report(report),
        time=hotspots(report, ours, theirs),
        explain=result.artifact and f"optkit explain {shlex.quote(result.artifact)}",
        strip=charts.strip(nodes),
        pairs=layers.pairs(report.layer_fidelity),
        ours=ours,
        theirs=theirs,
        kinds=layers.kinds(ours, theirs),
        memory=view.memory(report, ours, theirs),
        cost=report.cost,
        fusion=_table(report.fusion),
        preparation=_table(report.preparation),
        cast=_pairs({k: v for k, v in report.cast.items() if not isinstance(v, dict)}),
        islands=_pairs(islands if isinstance(islands, dict) else {}, verbatim=True),
        recipe=_pairs(details.flat(provenance.recipe), verbatim=True),
        specs=view.asked(report),
        measured_on=_pairs(details.flat(provenance.machine or {}), verbatim=True),
        finished=_pairs(details.flat(finished.to_json() if finished else {}), verbatim=True),
        digests=_pairs(provenance.digests),
        versions=_pairs(provenance.versions, verbatim=True),
        absent=list(details.absent(report)),
        about=view.about(report),
    )


def _table(rows: Sequence[Mapping[str, object]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of rows whose keys this module need not know."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return columns, [[figures.shown(row.get(key)) for key in columns] for row in rows]


def _pairs(facts: Mapping[str, object] | None, *, verbatim: bool = False) -> list[tuple[str, str]]:
    """Keys and values as text; keys are words of ours unless `verbatim`."""
    return [
        (key if verbatim else key.replace("_", " "), figures.shown(value))
        for key, value in (facts or {}).items()
    ]
