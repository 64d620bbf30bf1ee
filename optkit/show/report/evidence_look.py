"""How an evidence looks: one mark and one colour, the same on pages, in notebooks and on terminals.
Its word always stands beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from optkit.facts.evidence import Evidence


@dataclass(frozen=True)
class Look:
    """`mark`: a character, which pages draw; `light`, `dark`: the colour on a page of that theme;
    `ansi`: the terminal's colour, whose shade its own theme chooses."""

    mark: str
    light: str
    dark: str
    ansi: int


LOOKS: Mapping[Evidence, Look] = MappingProxyType(
    {
        Evidence.MEASURED: Look("●", "#14733c", "#58c585", 32),  # green
        Evidence.COMPILED: Look("■", "#0b63c5", "#5fadff", 94),  # blue; 34 is too dark on black
        Evidence.SIMULATED: Look("◐", "#00707f", "#4cc4d0", 36),  # cyan
        Evidence.PREDICTED: Look("◌", "#8a3aa8", "#d48fee", 35),  # magenta
        Evidence.PENDING: Look("○", "#44546a", "#9fb1c7", 1),  # nothing is known: no hue, but bold
    }
)


def css() -> str:
    """The colours of the badges of a page, on a screen of either theme and on paper."""
    light = "".join(f".badge.{known} {{ color: {look.light}; }}\n" for known, look in LOOKS.items())
    dark = "".join(f".badge.{known} {{ color: {look.dark}; }}\n" for known, look in LOOKS.items())
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"
