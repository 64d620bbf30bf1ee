"""Draw the rooms of optkit: python site/architecture.py

    docs/pictures/architecture.svg   the rooms, what is in each, and the direction of imports

Rooms and lines come from the contracts of import-linter in pyproject.toml, what is a package from
the folders, the sentence about a room from its docstring, and the colours from the pages.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/pictures/architecture.svg"
PALETTE = ROOT / "optkit/show/report/drawing/drawing.css"
PUBLIC = "public paths"
WIDTH, LEFT, MARGIN = 1000, 96, 16
LETTER = 7.25  # the width of one, in a font of 12 pixels
BOX, ROW, GAP = 24, 30, 8  # heights of a box and of a line of boxes; between boxes
STYLE = """
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; \
fill: var(--ink); }
.room { fill: var(--card); stroke: var(--line); }
.public { stroke-dasharray: 4 3; }
.package { fill: var(--page); stroke: var(--ours); }
.module { fill: none; stroke: var(--line); }
.name { font-weight: 700; font-size: 15px; }
.said { fill: var(--soft); font-family: system-ui, sans-serif; }
.arrow { fill: none; stroke: var(--soft); stroke-width: 2; }
"""


def contracts() -> dict[str, list[list[str]]]:
    """The lines of each package that has layers, from the top; "optkit" itself comes first."""
    config: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return {
        contract["containers"][0]: [re.findall(r"\w+", line) for line in contract["layers"]]
        for contract in config["importlinter"]["contracts"]
        if contract["type"] == "layers"
    }


def said(room: str) -> str:
    """The docstring of a room."""
    text = (ROOT / "optkit" / room / "__init__.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or ""


def folded(names: list[str]) -> Iterator[list[tuple[float, float, str]]]:
    """The boxes of a line, with their place and width, in as many rows as they need."""
    row: list[tuple[float, float, str]] = []
    at = float(LEFT + MARGIN)
    for name in names:
        width = len(name) * LETTER + 18
        if at + width > WIDTH - 2 * MARGIN:
            yield row
            row, at = [], float(LEFT + MARGIN)
        row.append((at, width, name))
        at += width + GAP
    yield row


def box(at: float, top: float, width: float, name: str, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{at:.0f}" y="{top:.0f}" width="{width:.0f}" height="{BOX}" '
        f'rx="5"/><text x="{at + 9:.0f}" y="{top + 16:.0f}">{name}</text>'
    )


def shown(room: str, name: str) -> str:
    """A module as it is, and a package as a folder."""
    return f"{name}/" if (ROOT / "optkit" / room / name).is_dir() else name


def room(name: str, about: str, lines: list[list[str]], top: float) -> tuple[list[str], float]:
    """The drawing of a room, and where it ends. An empty `name`: the public paths."""
    parts, at = [], top + 40
    for number, line in enumerate(lines):
        if number:  # what follows is below: it imports nothing of the lines above
            parts.append(
                f'<path class="module" d="M{LEFT + MARGIN} {at - 1:.0f}H{WIDTH - 2 * MARGIN}"/>'
            )
            at += 6
        for row in folded([shown(name, one) for one in line]):
            for left, width, one in row:
                parts.append(box(left, at, width, one, "package" if one[-1] == "/" else "module"))
            at += ROW
    end = at + 6
    frame = (
        f'<rect class="room{"" if name else " public"}" x="{LEFT}" y="{top:.0f}" '
        f'width="{WIDTH - LEFT - MARGIN}" height="{end - top:.0f}" rx="9"/>'
    )
    head = (
        f'<text x="{LEFT + MARGIN}" y="{top + 25:.0f}"><tspan class="name">{name or PUBLIC}</tspan>'
        f'<tspan class="said" dx="12">{escape(about)}</tspan></text>'
    )
    return [frame, head, *parts], end


def palette() -> str:
    """The variables of the pages, in both themes."""
    css = PALETTE.read_text(encoding="utf-8")
    return css[: css.index("\n.")] + "\n"


def drawing() -> str:
    """The picture as SVG."""
    inside = contracts()
    public, *rooms = inside.pop("optkit")
    about = "Names that users import; they hold no code."
    parts, at = room("", about, [public], MARGIN)
    for (name,) in rooms:
        drawn, at = room(name, said(name), inside[f"optkit.{name}"], at + 12)
        parts += drawn
    title = "The rooms of optkit, and what may import what"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {at + MARGIN:.0f}" '
        f'role="img" aria-label="{title}">\n<title>{title}</title>\n'
        f"<style>\n{palette()}{STYLE}</style>\n"
        f'<rect width="{WIDTH}" height="{at + MARGIN:.0f}" style="fill: var(--page)"/>\n'
        + "\n".join([*arrow(MARGIN, at), *parts])
        + "\n</svg>\n"
    )


def arrow(top: int, end: float) -> list[str]:
    """The one direction, at the left of the rooms."""
    tip, wing, middle = round(end - 4), round(end - 16), round((top + end) / 2)
    about = "imports go down: each line may import those below it"
    turned = f'transform="translate(40 {middle}) rotate(-90)"'
    return [
        f'<path class="arrow" d="M56 {top + 4}V{tip}M48 {wing}L56 {tip}L64 {wing}"/>',
        f'<text class="said" text-anchor="middle" {turned}>{about}</text>',
    ]


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
