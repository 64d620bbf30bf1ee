"""What a notebook shows of an artifact, a fleet and a search."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.facts.documents.tune import Tune
from optkit.facts.errors import Impossible
from optkit.show.report import head
from optkit.show.report.build_result import failed
from tests.report.conftest import read_result
from tests.report.hostile import PAYLOADS
from tests.report.test_fleet_page import fleet_of

TAGS = {"div", "table", "tr", "td", "th", "b", "span", "code"}


class Page(HTMLParser):
    """Balanced tags of a few kinds, whose attributes are styles alone."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.styles: list[str] = []
        self.shown: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        for name, value in attrs:
            assert name in {"style", "class", "scope"}
            self.styles += [value or ""] if name == "style" else []
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


def shown(text: str) -> str:
    """The text of a head, whose style is checked: nothing is loaded, and no colour of text is
    set, so it fits a light and a dark page."""
    page = Page(text)
    for style in page.styles:
        assert "url(" not in style and not re.search(r"(^|;)\s*(color|background-color):", style)
    return " ".join(" ".join(page.shown).split())


def test_an_artifact_shows_sentence_figures_evidence_and_gate(make: Any) -> None:
    result = read_result(make()["result"])
    text = shown(head.of_result(result, "artifacts/digits-vit-l4-int8"))
    advice = result.recommendation
    assert advice is not None and advice.sentence in text
    assert "as fast as fp16 ◌ predicted" in text and "drop in top1 ◐ simulated" in text
    assert "12 of 12 nodes run as planned ■ compiled" in text
    assert result.gate is not None and f"Gate: {result.gate.verdict}" in text
    assert "artifacts/digits-vit-l4-int8/report.html" in text


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_name_of_a_stranger_acts(payload: str, make: Any) -> None:
    result = read_result(make(lambda name: payload)["result"])
    shown(head.of_result(result, payload))


def test_a_fleet_shows_a_row_for_each_pair(make: Any) -> None:
    never = failed(Impossible("no FP8"), model="m", target="t4", precision="fp8").to_json()
    text = shown(head.of_fleet(fleet_of([make()["result"], never]), "out/m-fleet"))
    assert "target precision verdict latency speedup accuracy evidence" in text
    assert "t4 fp8 Impossible" in text and "l4 int8" in text


def test_a_search_shows_what_it_chose(tune: Any, make: Any) -> None:
    search, result = Tune.from_json(tune), read_result(make()["result"])
    text = shown(head.of_search(search, result, "out/m.tune"))
    assert text.startswith("m for l4: which layers to quantize")


def test_a_result_that_cannot_be_read_has_no_head() -> None:
    broken: Any = SimpleNamespace(path=Path("a"), manifest=SimpleNamespace(result={"gate": 7}))
    assert head.of_artifact(broken) is None
