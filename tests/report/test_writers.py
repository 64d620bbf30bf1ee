"""HTML and Markdown: they show the figures, load nothing, and let no name act."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from optkit.facts.documents.report import Provenance
from optkit.facts.documents.result import Result
from optkit.facts.errors import InputRefused
from optkit.facts.measurement import Latencies
from optkit.facts.printable import printable
from optkit.show.report.build_page import to_html
from optkit.show.report.build_result import (
    BuildRun,
    Findings,
    PrecisionResult,
    failed,
    result,
    to_finish,
)
from optkit.show.report.document import Rewrites, compose, measured
from optkit.show.report.junit import to_junit
from optkit.show.report.markdown import to_markdown
from tests.figures import Figures
from tests.report import test_junit as junit
from tests.report.conftest import read
from tests.report.hostile import PAYLOADS


def html(report: dict[str, Any]) -> str:
    return to_html(read(report))


def markdown(report: dict[str, Any]) -> str:
    return to_markdown(read(report))


class Structure(HTMLParser):
    """The page as a sequence of tags with their attribute names, and the links it has."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, ...]] = []
        self.references: list[str | None] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))
        self.references += [value for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(("/" + tag,))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def markdown_structure(text: str) -> list[tuple[str, ...]]:
    """Block and inline token types as a GitHub-like parser sees them."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    found: list[tuple[str, ...]] = []
    for token in parser.parse(text):
        children = [c.type for c in token.children or () if c.type not in ("text", "text_special")]
        found.append((token.type, *children))
    return found


def renamed(payload: str) -> Any:
    return lambda name: f"{payload}{name}{payload}"


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_name_changes_the_structure_of_the_page(make: Any, payload: str) -> None:
    page, benign = Structure(html(make(renamed(payload)))), Structure(html(make()))
    assert page.tags == benign.tags
    assert page.references == []


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_name_changes_the_structure_of_the_markdown(make: Any, payload: str) -> None:
    text = markdown(make(renamed(payload), lost=3))
    assert markdown_structure(text) == markdown_structure(markdown(make(lost=3)))
    assert not re.search(r"https?://|www\.|@\w|#\d+ |\x1b|\u202e", text.replace("&#", ""))


@given(st.text(max_size=30))
@settings(max_examples=25, deadline=None)
def test_any_text_is_harmless_in_both(make: Any, payload: str) -> None:
    report = make(renamed(payload))
    assert Structure(html(report)).tags == Structure(html(make())).tags
    assert markdown_structure(markdown(report)) == markdown_structure(markdown(make()))


@pytest.mark.slow
def test_no_payload_is_live_anywhere(make: Any, figures: Figures) -> None:
    """Each payload alone and in the surroundings that close a quote, a tag, a section or a line:
    in the page, in Markdown, in JUnit and on a terminal."""
    around = ("{}", "'{}'", '">{}<"', "]]>{}<![CDATA[", "\n\n{}\n\n")
    every = [form.format(payload) for payload in PAYLOADS for form in around]
    chosen = every[:: figures.times(9, 1)]
    page, text = Structure(html(make())), markdown_structure(markdown(make(lost=3)))
    for payload in chosen:
        report = make(renamed(payload), lost=3)
        found = Structure(html(make(renamed(payload))))
        assert found.tags == page.tags and found.references == [], payload
        assert markdown_structure(markdown(report)) == text, payload
        (case,) = junit.read(
            to_junit([junit.suite(junit.row("fail", payload))])
        ).getElementsByTagName("testcase")
        assert [child.tagName for child in case.childNodes if child.nodeType == 1] == ["failure"]
        shown = printable(payload)
        assert not set(shown) & set("\x07\x08\x1b\x9b\u202e\u2066\ud800"), payload
    figures.tell(
        "hostile names in reports", len(chosen),
        "scripts, styles, links, tables, templates, escape sequences, reordered text; in the "
        "page, in Markdown, in JUnit and on a terminal: the structure is that of a harmless name",
    )  # fmt: skip


def test_hostile_names_are_shown_as_they_are(make: Any) -> None:
    page = Structure(html(make(renamed("<b>&amp;"))))
    assert any("<b>&amp;digits-vit<b>&amp;" in text for text in page.text)
    parser = MarkdownIt("commonmark").enable("table")
    shown = parser.render(markdown(make(renamed("<b>|`_"))))
    assert "&lt;b&gt;|`_digits-vit&lt;b&gt;|`_" in shown


def test_names_with_control_characters_cannot_reach_a_terminal(make: Any) -> None:
    report = make(renamed("\x1b[2J\x9b\u202e"))
    for text in (html(report), markdown(report)):
        assert not set(text) & set("\x1b\x9b\u202e")
        text.encode()


def test_the_page_is_whole_and_loads_nothing(make: Any) -> None:
    page = html(make(measure=True))
    assert page.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in page
    structure = Structure(page)
    assert not {tag for tag, *_ in structure.tags} & {"link", "img", "iframe", "object", "style "}
    assert [tag for tag, *_ in structure.tags].count("script") == 1
    assert not any(re.match("on|style$", name) for _, *names in structure.tags for name in names)
    assert not re.search(r"https?:|url\(|@import", page)
    opened = [
        tag
        for tag, *_ in structure.tags
        if tag not in ("!doctype", "meta", "input") and not tag.startswith("/")
    ]
    closed = [tag[1:] for tag, *_ in structure.tags if tag.startswith("/")]
    assert sorted(opened) == sorted(closed)


def test_a_measured_build_shows_its_distribution_and_machine(make: Any) -> None:
    report = make(measure=True)
    page = " ".join(Structure(html(report)).text)
    assert "1,200 runs" in page and "Over time" in page
    assert "taken by other processes" in page and "2,445 to 2,450" in page
    assert "Measured on" not in page
    report["provenance"]["machine"] = {"cpu": "A CPU", "threads": 4}
    page = html(report)
    assert "<h3>Measured on</h3>" in page and "<dt>cpu</dt><dd>A CPU</dd>" in page
    assert "bad conditions" not in page + markdown(report)
    assert "Measured 2026-11-20 14:03 UTC on A CPU." in page
    assert "Latency measured 2026-11-20 14:03 UTC on A CPU." in markdown(report)
    report["result"]["latency"] |= {"from_store": True, "machine": "A <b>CPU</b>"}
    assert "on A &lt;b&gt;CPU&lt;/b&gt;, from the store." in html(report)
    assert "on A &#60;b&#62;CPU&#60;/b&#62;, from the store." in markdown(report)
    report["result"]["baseline"]["latency"]["marks"] = ["the fan <b>stopped</b>"]
    assert "bad conditions:</strong> the fan &lt;b&gt;stopped" in html(report)
    assert "bad conditions:** the fan &#60;b&#62;stopped" in markdown(report)
    assert report["latency_rounds"] == {"engine": 40, "baseline": 40}


def test_a_predicted_build_shows_bands_and_no_runs(make: Any) -> None:
    page = html(make())
    assert "the bar is the band of the prediction" in page
    assert "nothing was timed; the latency is predicted" in page
    assert "Over time" not in page and "half of them" not in page
    assert 'class="badge predicted"' in page
    assert 'class="badge simulated"' in page
    assert 'class="badge measured"' in page.split("How each figure is known")[1]
    assert 'class="badge measured"' not in page.split("How each figure is known")[0]


def test_every_planned_node_and_layer_is_listed(make: Any) -> None:
    report = make(lost=1)
    page = html(report)
    assert "11 of 12 planned nodes run as planned: 11 in int8" in page
    for layer in report["layers"]["engine"] + report["layers"]["baseline"]:
        assert f'<th scope="row" class="name">{layer["name"]}</th>' in page
    assert '<td class="outcome fail" data-label="runs as">float16, not landed</td>' in page
    assert "one input channel never lands" in page
    assert "folded into the convolution" in page
    assert "1×1×8×8, 8×1×8×8, 32×1×8×8" in page
    assert "overflows half precision" in page
    told = 'title="cosine 0.984151, largest error 0.2" data-label="alone, dB">18.0</td>'
    assert told in page


def empty_report(found: Result) -> dict[str, Any]:
    figures = measured(found, PrecisionResult("int8"), None, Findings(), Latencies(), {})
    past = Provenance(recipe={}, digests={}, versions={}, steps=(), build_spec={})
    return compose(found, figures, rewrites=Rewrites(), provenance=past).to_json()


def test_builds_with_nothing_to_show_still_make_a_page() -> None:
    refused = failed(
        InputRefused("bad <model>", where="conv1", hint="fix it"),
        model=None, target="l4", precision="int8",
    )  # fmt: skip
    page = html(empty_report(refused))
    assert "conv1: bad &lt;model&gt;; fix it" in page
    assert "bad &#60;model&#62;; fix it" in markdown(empty_report(refused))
    waiting = result(
        PrecisionResult("int8", "tensorrt", note="needs an H100"),
        PrecisionResult("fp16", "tensorrt"),
        Findings(),
        BuildRun(),
        model="m",
        target="h100",
        artifact="a",
        pending=to_finish("a", ["tensorrt"]),
    )
    assert "<code>optkit finish a</code>" in html(empty_report(waiting))
    assert "- tensorrt: optkit finish a" in markdown(empty_report(waiting))


def test_markdown_says_the_same_in_short(make: Any) -> None:
    text = markdown(make(lost=3))
    assert text.startswith("## digits-vit · l4 · int8: Not yet: INT8\n")
    assert "| Engine size | 576 KiB | 303 KiB | −47 % | compiled |" in text
    assert "| max\\_drop | pass |" in text
    assert "**Landing:** 9 of 12 planned nodes run as planned." in text
    assert "| blocks.0/qkv/MatMul | MatMul | int8 | float16 |" in text
    assert "*simulated*: the same graph, run by ONNX Runtime on a CPU" in text
    assert "*measured*" not in text
    assert "| blocks.2/fc2/MatMul | int8 | +2.6 | 18.0 | 27.0 |" in text
    assert "**Cost** (predicted): &#36;" in text and " per million samples" in text


def test_both_tell_what_the_compiler_was_asked_and_why(make: Any) -> None:
    report = make()
    for page in (html(report), markdown(report)):
        assert "Build options of tensorrt-rtx" in page and "precision lives in the graph" in page
        assert "1.0 GiB" in page or "1 GiB" in page


def test_a_long_list_of_misses_is_cut_and_counted(make: Any) -> None:
    report = make(lost=12)
    report["landing"] = report["landing"] * 3
    text = markdown(report)
    assert text.count("| MatMul | int8 | float16 |") == 20
    assert "… and 16 more." in text


def test_the_document_survives_json(make: Any) -> None:
    report = make(measure=True)
    again = json.loads(json.dumps(report, allow_nan=False))
    assert again == report
    assert html(again) == html(report)


def test_both_say_that_calibration_data_is_suspect(make: Any) -> None:
    report = make(suspect=True)
    for text in (html(report), markdown(report)):
        assert "Calibration data is suspect." in text
        assert "255 times as large" in text and "only 3 of 64 samples" in text
    for text in (html(make()), markdown(make())):
        assert "suspect" not in text
    old = make()
    del old["result"]["calibration"]  # of an artifact that was made before there was a check
    assert "suspect" not in markdown(old)
