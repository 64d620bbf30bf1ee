"""How an evidence looks: one mark and one colour, the same on pages, in notebooks and on terminals.
Its word always stands beside them."""

from __future__ import annotations

from typing import NamedTuple

from optkit.facts.evidence import Evidence


class EvidenceLook(NamedTuple):
    """`light`, `dark`: the colour on a page of that theme; `ansi`: that of a terminal, whose own
    theme chooses the shade."""

    mark: str
    light: str
    dark: str
    ansi: int


LOOKS = {
    Evidence.MEASURED: EvidenceLook("●", "#14733c", "#58c585", 32),  # green
    Evidence.COMPILED: EvidenceLook("■", "#0b63c5", "#5fadff", 94),  # blue; 34 is too dark on black
    Evidence.SIMULATED: EvidenceLook("◐", "#00707f", "#4cc4d0", 36),  # cyan
    Evidence.PREDICTED: EvidenceLook("◌", "#8a3aa8", "#d48fee", 35),  # magenta
    Evidence.PENDING: EvidenceLook(
        "○", "#44546a", "#9fb1c7", 1
    ),  # nothing is known: no hue, but bold
}


def css() -> str:
    """The colours of the badges of a page, on a screen of either theme and on paper."""
    light = "".join(f".badge.{known} {{ color: {look.light}; }}\n" for known, look in LOOKS.items())
    dark = "".join(f".badge.{known} {{ color: {look.dark}; }}\n" for known, look in LOOKS.items())
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"
