"""Each evidence has one mark and one colour on pages, in notebooks and on terminals, and its word
always stands beside them."""

from __future__ import annotations

import colorsys
import re
from pathlib import Path
from typing import Any

from optkit.facts.evidence import Evidence
from optkit.show.report import build_page, evidence_look, head
from optkit.show.report.evidence_look import LOOKS
from tests.report.conftest import read, read_result

REPORT = Path(evidence_look.__file__).parent
CONTRAST = 4.5  # that of WCAG AA
HUES = {32: 120, 94: 225, 36: 180, 35: 300}  # of the terminal's colours, in degrees


def channels(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def luminance(colour: str) -> float:
    linear = [
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4
        for one in channels(colour)
    ]
    return sum(w * one for w, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def grounds() -> list[dict[str, str]]:
    """What badges stand on: the light palette of the pages, then the dark one."""
    css = (REPORT / "drawing/drawing.css").read_text()
    palettes = [dict(re.findall(r"--(\w+): (#\w{6});", part)) for part in css.split("@media")]
    found = [one for one in palettes if one]
    assert len(found) == 2
    return found


def test_each_is_readable_in_both_themes() -> None:
    assert set(LOOKS) == set(Evidence)
    for palette, theme in zip(grounds(), ("light", "dark"), strict=True):
        for look in LOOKS.values():
            for ground in ("card", "page"):
                assert contrast(getattr(look, theme), palette[ground]) >= CONTRAST


def test_no_two_have_the_same_mark_or_colour() -> None:
    for part in ("mark", "light", "dark", "ansi"):
        assert len({getattr(look, part) for look in LOOKS.values()}) == len(Evidence), part


def test_the_colours_of_a_page_are_those_of_a_terminal() -> None:
    for known, look in LOOKS.items():
        if known is Evidence.PENDING:  # it has no hue
            assert look.ansi not in HUES
            continue
        for colour in (look.light, look.dark):
            hue = 360 * colorsys.rgb_to_hsv(*channels(colour))[0]
            nearest = min(HUES, key=lambda code: abs((hue - HUES[code] + 180) % 360 - 180))
            assert nearest == look.ansi, known


def test_a_page_draws_them_beside_the_word(make: Any) -> None:
    page = build_page.to_html(read(make()))
    for known, look in LOOKS.items():
        assert f'<span class="badge {known}">{known}</span>' in page  # in the legend at least
        assert f".badge.{known} {{ color: {look.light}; }}" in page
        assert f".badge.{known} {{ color: {look.dark}; }}" in page
    # the mark of `pending` is the one that all begin with: an empty circle
    drawn = re.findall(r"^\.badge\.(\w+)(?:, \S+)?::before", page, re.M)
    assert {*drawn, Evidence.PENDING} == set(Evidence)


def test_a_notebook_has_the_mark_beside_the_word(make: Any) -> None:
    text = head.of_result(read_result(make()["result"]), "artifacts/a")
    marked = re.findall(r">(\S) (measured|compiled|simulated|predicted|pending)<", text)
    assert len(marked) >= 3
    assert all(mark == LOOKS[Evidence(word)].mark for mark, word in marked)
