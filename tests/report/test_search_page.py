"""The page of a search: its front, drawn and listed, and what each group of layers costs."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from optkit.facts.documents.tune import Tune
from optkit.show.report import search_page
from tests.report.test_build_result import check


def test_the_page_shows_front_and_layers_and_lets_no_name_act(tune: dict[str, Any]) -> None:
    page = search_page.to_html(Tune.from_json(tune))
    assert page.count("<img") == 0 and "\u202e" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;\ufffd0, b" in page
    assert '<a href="../m-tuned-l4-int8/report.html">' in page
    assert "drop, at most" in page and "1.00 %" in page and "SQNR, at least" not in page
    assert page.count("<circle") == 2  # what equals the reference has no SQNR to be drawn at


def test_the_front_is_reported_with_what_fresh_samples_said(tune: dict[str, Any]) -> None:
    fast, chosen, equal = search_page.front(Tune.from_json(tune))
    assert (fast.drop, chosen.drop, chosen.spread) == ("–", "0.20 %", "-0.10 to 0.40 %")
    assert (equal.sqnr, equal.landed, chosen.point.chosen) == ("equal", "–", True)


def test_the_hotter_the_larger_the_share(tune: dict[str, Any]) -> None:
    first, second = search_page.groups(Tune.from_json(tune))
    assert (first.share.heat, first.sqnr.heat, second.sqnr.text) == (4, 3, "equal")


def test_what_it_shows_is_an_object_of_the_schema(tune: dict[str, Any]) -> None:
    check("tune", tune)


def test_the_front_alone_is_a_file_with_a_dot_per_candidate(tune: dict[str, Any]) -> None:
    drawn = list(
        ElementTree.fromstring(search_page.to_svg(Tune.from_json(tune))).iter(
            "{http://www.w3.org/2000/svg}circle"
        )
    )
    assert len(drawn) == sum(one["sqnr_db"] is not None for one in tune["front"])
    assert sum("chosen" in one.attrib["class"] for one in drawn) == 1
    nothing = search_page.to_svg(Tune.from_json({**tune, "front": tune["front"][:1]}))
    assert "two candidates" in nothing and "<circle" not in nothing
