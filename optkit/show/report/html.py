"""Pages as HTML. A page loads no other file, has a light and a dark palette, and can be printed.

All content passes through `figures.name` and autoescape. A Content-Security-Policy allows only our
style and script, by their digests: if a name ever became markup, it would have no effect.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import platformdirs
from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from optkit.show.report import details, evidence_look, figures, view
from optkit.show.report.told_once import told_once

_HERE = Path(__file__).parent


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
        bytecode_cache=_compiled(),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "advice": _advice,
        "ms": figures.ms,
        "size": figures.size,
        "count": figures.count,
        "dollars": figures.dollars,
        "price": details.price,
        "told_once": told_once,
    }
    environment.globals["meaning"] = view.EVIDENCE
    environment.globals["looks"] = evidence_look.LOOKS
    drawing = _file("drawing/drawing.css")
    style = drawing + _file("style.css") + evidence_look.css() + _file("pictures.css")
    for name, text in (("style", style), ("script", _file("script.js"))):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        environment.globals[name] = Markup(text)
        environment.globals[f"{name}_digest"] = f"sha256-{digest}"
    environment.globals["light_drawing"] = Markup(_without_variables(drawing))
    return environment


class _Compiled(FileSystemBytecodeCache):
    """Compiled templates, which later processes load: compilation takes half the time of a page."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """A disk that is full costs time, not the page."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


def _compiled() -> _Compiled | None:
    """In the user's cache folder. None if another user can write there, who would then decide what
    code runs here, or if there can be no such folder."""
    folder = Path(platformdirs.user_cache_dir("optkit", appauthor=False)) / "templates"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError:
        return None
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    return _Compiled(str(folder), f"{version('optkit')}_%s.cache")


def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _without_variables(css: str) -> str:
    """The rules of a stylesheet with the values of its first palette in them: not every viewer of
    SVG files knows variables."""
    palette, _, rest = css.partition("}")
    values = dict(re.findall(r"--(\w+): ([^;]+);", palette))
    rules = rest[rest.index("\n.") :]  # behind the dark palette
    return re.sub(r"var\(--(\w+)\)", lambda use: values[use[1]], rules)


def _advice(sentences: str) -> Markup:
    return escape(figures.advice(sentences))


def _shown(value: object) -> object:
    """What an expression of the template prints; text of the template itself passes as it is."""
    if value is None:
        return figures.NONE
    if isinstance(value, str) and not isinstance(value, Markup):
        return figures.name(value)
    return value
