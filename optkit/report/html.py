"""The report as one HTML file: no script, nothing loaded from elsewhere, light and dark, printable.

Everything shown goes through `figures.name` and autoescape; a Content-Security-Policy forbids the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from optkit.report import charts, figures, view


def to_html(report: Mapping[str, Any]) -> str:
    """Render a report document (schema optkit.report/v1)."""
    ours = view.layers(report["layers"]["engine"])
    theirs = view.layers(report["layers"]["baseline"])
    template = environment().get_template("template.html")
    page = template.render(
        report=report,
        result=report["result"],
        headline=view.headline(report["result"]),
        highlights=view.highlights(report["result"]),
        comparison=view.comparison(report["result"]),
        meaning=view.EVIDENCE,
        histogram=charts.histogram(report),
        bands=charts.bands(report["result"]),
        drop=charts.drop(report),
        ours=ours,
        theirs=theirs,
        kinds=view.kinds(ours, theirs),
        landing=view.landing(report["landing"], ours, theirs),
        fusion=_table(report["fusion"]),
        preparation=_table(report["preparation"]),
        cast=_pairs({k: v for k, v in report["cast"].items() if not isinstance(v, Mapping)}),
        islands=_pairs(report["cast"].get("islands"), verbatim=True),
        conditions=_pairs(report["conditions"]),
        recipe=_pairs(report["provenance"]["recipe"]),
        specs=view.asked(report),
        digests=_pairs(report["provenance"]["digests"]),
        versions=_pairs(report["provenance"]["versions"]),
    )
    return page.strip() + "\n"


@cache
def environment() -> Environment:
    """Where all pages come from: the templates beside this module, everything shown escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ms": figures.ms,
        "size": figures.size,
        "rate": figures.rate,
        "count": figures.count,
    }
    return environment


def _shown(value: Any) -> Any:
    """What an expression of the template prints; text of the template itself passes as it is."""
    if value is None:
        return figures.NONE
    if isinstance(value, str) and not isinstance(value, Markup):
        return figures.name(value)
    return value


def _table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of rows whose keys this module need not know."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return columns, [[figures.shown(row.get(key)) for key in columns] for row in rows]


def _pairs(facts: Mapping[str, Any] | None, *, verbatim: bool = False) -> list[tuple[str, str]]:
    """Keys and values as text; keys are words of ours unless `verbatim`."""
    return [
        (key if verbatim else key.replace("_", " "), figures.shown(value))
        for key, value in (facts or {}).items()
    ]
