"""The report as one HTML file: it loads no other file, has a light and a dark palette, and can be
printed.

All content passes through `figures.name` and autoescape. A Content-Security-Policy allows only our
style and script, by their digests: if a name ever became markup, it would have no effect.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from optkit import runtimes
from optkit.documents.report import Report
from optkit.report import details, figures, layers, view
from optkit.report.drawing import charts

_HERE = Path(__file__).parent


def to_html(report: Report) -> str:
    engine = report.result.engine
    moves_data = runtimes.backend(engine.backend).traits.moves_data if engine else None
    ours, theirs = (
        layers.layers(side, moves_data) for side in (report.layers.engine, report.layers.baseline)
    )
    nodes = layers.nodes(report, ours, theirs)
    islands = report.cast.get("islands")
    result, provenance, finished = report.result, report.provenance, report.provenance.finished
    return render(
        "build.html",
        report=report,
        result=result,
        headline=view.headline(result),
        highlights=view.highlights(result),
        comparison=view.comparison(result),
        marks=view.marks(result),
        measured=figures.measured(result.latency),
        suspicions=view.suspicions(result),
        scores=charts.scores(result),
        drop=charts.drop(report),
        histogram=charts.histogram(report),
        course=charts.course(report),
        bands=charts.bands(result),
        timings=details.timings(report),
        phases=details.phases(result),
        machine=details.machine(report.conditions),
        nodes=layers.by_need(nodes),
        explain=result.artifact and f"optkit explain {shlex.quote(result.artifact)}",
        strip=charts.strip(nodes),
        pairs=layers.pairs(report.layer_fidelity),
        ours=ours,
        theirs=theirs,
        kinds=layers.kinds(ours, theirs),
        memory=details.memory(report, ours, theirs),
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


def render(template: str, **shown: object) -> str:
    """A page of ours."""
    return _environment().get_template(template).render(**shown).strip() + "\n"


def render_alone(kind: str, chart: object, *, width: int, height: int, absent: str = "") -> str:
    """A drawing as an SVG file that loads no other file. `kind`: its macro in drawing/charts.html;
    `width` and `height`: its size in pixels; `absent`: the text if `chart` is None."""
    return render(
        "drawing/alone.svg", kind=kind, chart=chart, width=width, height=height, absent=absent
    )


@cache
def _environment() -> Environment:
    """Where all pages come from: the templates beside this module, everything shown escaped."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ms": figures.ms,
        "size": figures.size,
        "count": figures.count,
        "dollars": details.dollars,
        "price": details.price,
    }
    environment.globals["meaning"] = view.EVIDENCE
    drawing = _file("drawing/drawing.css")
    for name, text in (("style", drawing + _file("style.css")), ("script", _file("script.js"))):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        environment.globals[name] = Markup(text)
        environment.globals[f"{name}_digest"] = f"sha256-{digest}"
    environment.globals["light_drawing"] = Markup(_without_variables(drawing))
    return environment


def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _without_variables(css: str) -> str:
    """The rules of a stylesheet with the values of its first palette in them: not every viewer of
    SVG files knows variables."""
    palette, _, rest = css.partition("}")
    values = dict(re.findall(r"--(\w+): ([^;]+);", palette))
    rules = rest[rest.index("\n.") :]  # behind the dark palette
    return re.sub(r"var\(--(\w+)\)", lambda use: values[use[1]], rules)


def _shown(value: object) -> object:
    """What an expression of the template prints; text of the template itself passes as it is."""
    if value is None:
        return figures.NONE
    if isinstance(value, str) and not isinstance(value, Markup):
        return figures.name(value)
    return value


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
