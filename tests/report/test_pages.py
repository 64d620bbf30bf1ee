"""The pages of a comparison and of an explanation: what comes first, each figure with its evidence,
and names of strangers as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optkit.facts.documents.diff import Diff
from optkit.facts.documents.explanation import Explained
from optkit.facts.documents.report import Report
from optkit.show.report import build_page, diff_page, explanation_page
from tests.report.conftest import HOSTILE

WRITTEN = Path(__file__).parents[1] / "documents/written"
SHOWN = "&lt;img src=x onerror=alert(1)&gt;\ufffd"


def written(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((WRITTEN / f"{name}.json").read_text())
    return data


def figure(name: str, seen: str, change: float | None = None, **more: Any) -> dict[str, Any]:
    side = {"value": 2.0, "interval": [1.9, 2.1], "evidence": "measured"}
    ends = change and {"kind": "ratio", "value": change, "interval": [change - 0.01, change + 0.01]}
    return {"figure": name, "unit": "ms", "a": side, "b": side, "change": ends, "seen": seen,
            "note": None, **more}  # fmt: skip


def compared(*figures: dict[str, Any], **more: Any) -> Diff:
    return Diff.from_json({**written("diff"), "figures": list(figures), **more})


def test_a_comparison_starts_with_what_differs_and_how_that_is_known() -> None:
    rows = (figure("SQNR", "none", 1.0), figure("latency, batch 8", "higher", 1.2))
    found = compared(*rows, figure("speedup", "unknown", note="on another machine"))
    head = diff_page.headline(found)
    assert (head.word, head.title) == ("fail", "B is worse in latency, batch 8")
    assert "1.20× (95 % interval 1.19× to 1.21×), measured" in head.sentence
    assert head.conditions == ("not compared (on another machine): speedup",)
    page = diff_page.to_html(found)
    assert page.index(head.title) < page.index('id="figures"') < page.index('id="graph"')
    assert page.count('<span class="badge measured">') == 1 + 1  # of all rows, and in the legend
    assert (
        "In all rows: <span>A </span><b><span>2 ms <small>1.9 to 2.1 ms</small></span></b>" in page
    )
    assert "no difference seen" in page


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (figure("drop", "lower", 0.9), "pass"),
        (figure("speedup", "higher", 1.1), "pass"),
        (figure("engine size", "other"), "pending"),
        (figure("verdict", "other", a={"value": "inconclusive"}, b={"value": "fail"}), "fail"),
        (figure("verdict", "other", a={"value": None}, b={"value": "fail"}), "pending"),
    ],
)
def test_better_or_worse_depends_on_the_figure(row: dict[str, Any], word: str) -> None:
    assert diff_page.headline(compared(row)).word == word


def test_without_a_difference_of_figures_the_others_are_counted() -> None:
    head = diff_page.headline(compared(figure("SQNR", "none", 1.0)))
    assert head.title == "B differs" and "23 nodes of the graph, 6 weights" in head.sentence
    same = compared(same=True, graph=None, layers=[])
    assert diff_page.headline(same).title == "No difference"


def test_an_explanation_starts_with_the_most_costly_fault() -> None:
    data = written("explain-l4")
    limit, fault = data["findings"]
    found = Explained.from_json({**data, "findings": [{**fault, "limit": False}, limit]})
    page = explanation_page.to_html(found)
    head = page[page.index('<div class="verdict inconclusive">') : page.index("<nav")]
    assert "12 products wait for memory" in head
    assert "0.503 µs per call (1% of the layers&#39; time, predicted)" in head
    assert (
        "Faults: 1; limits of this model on this device: 1." in head
        and '<span class="badge predicted">' in head
    )
    for text in ("0.0176 ms", "0.77× to 1.10×", "top1, 898 samples", "40.1 to 40.5 dB"):
        assert text in page


def test_an_explanation_says_what_was_not_found_and_not_timed() -> None:
    data = {**written("explain-l4"), "findings": [], "time": None, "untimed": "no engine"}
    page = explanation_page.to_html(Explained.from_json(data))
    assert "No rule suggests a change to ranges and weights." in page
    assert "The times of the layers are not known: no engine" in page


def test_an_explanation_has_sections_for_each_part_and_the_recipe() -> None:
    part = written("explain-l4")
    parts = {"encoder": part, "decoder": {**part, "findings": []}}
    whole = {**part, "findings": [], "parts": parts,
             "recipe": {"path": "faster.yaml", "missing": ["model.path=a"]},
             "left": [{"rule": "layout", "nodes": ["n"], "text": "fewer copies"}]}  # fmt: skip
    page = explanation_page.to_html(Explained.from_json(whole))
    for text in ('id="findings-1"', "Findings of encoder", "Figures of decoder", "encoder: int8 is",
                 "faster.yaml", "--set model.path=a", "fewer copies"):  # fmt: skip
        assert text in page


def everywhere(data: Any) -> Any:
    """The document with a stranger's name in each place that takes any text."""
    words = {"schema", "kind", "evidence", "seen", "rule", "question", "of", "unit", "target"}
    if isinstance(data, dict):
        return {k: v if k in words else everywhere(v) for k, v in data.items()}
    if isinstance(data, list):
        return [everywhere(one) for one in data]
    return HOSTILE if isinstance(data, str) else data


BUILD = {
    "engine_bytes": 2048, "calibration": {"samples": 64, "source": "content:a/digits.py:load"},
    "evaluation": {"samples": 898, "source": None}, "measured_at": "2026-11-20T14:03:12Z",
    "machine": "A CPU", "from_store": False,
}  # fmt: skip
ABOUT = ("engine 2 KiB", "calibrated on 64 samples from a/digits.py:load",
         "accuracy on 898 samples", "measured 2026-11-20 14:03 UTC on A CPU")  # fmt: skip


def test_the_head_says_what_was_built_on_which_data_and_when() -> None:
    data = written("diff")
    pages = (
        diff_page.to_html(Diff.from_json({**data, "b": {**data["b"], "build": BUILD}})),
        explanation_page.to_html(Explained.from_json({**written("explain-l4"), "build": BUILD})),
    )
    for page in pages:
        head = page[page.index("<h1>") : page.index('<div class="verdict')]
        assert all(fact in head for fact in ABOUT)


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("diff", lambda data: diff_page.to_html(Diff.from_json(data))),
        ("explain-l4", lambda data: explanation_page.to_html(Explained.from_json(data))),
    ],
)
def test_no_name_acts(name: str, page: Any) -> None:
    text = page(everywhere(written(name)))
    assert text.count("<img") == 0 and "\u202e" not in text
    assert text.count(SHOWN) > 8


def with_clipping(value: str) -> dict[str, Any]:
    """The report of a build in which one range clips most of what it should hold."""
    data = written("report-cpu")
    pair = {
        "pair": "Q0", "read": True, "again": False, "value": value, "readers": ["stem.0/Conv"],
        "fault": "clipped", "without": {"sqnr_db": 32.0}, "sqnr_db": 18.0, "share": 0.125,
        "noise": 0.96, "low": 0.0, "high": 1.0, "seen": [0.0, 4.0],
    }  # fmt: skip
    fault = {"fault": "clipped", "pairs": ["Q0"], "without": {"sqnr_db": 32.0}}
    data["layer_fidelity"] |= {"sqnr_db": 20.0, "values": [pair], "faults": [fault]}
    return data


def test_the_page_of_a_build_has_the_findings_that_need_no_times() -> None:
    report = Report.from_json(with_clipping(HOSTILE))
    (found,) = explanation_page.of_report(report)
    assert (found.finding.rule, found.finding.limit) == ("clipped", False)
    page = build_page.to_html(report)
    assert "12.50% of the elements of " in page and SHOWN in page and HOSTILE not in page
    assert "12.0 dB" in found.cost and "(94% of the noise, simulated)" in found.cost
    assert page.index("What costs accuracy") < page.index("Layer by layer")
    assert "To write a recipe with the changes" in page


def test_the_end_of_a_long_recommendation_is_on_the_page() -> None:
    data = written("report-cpu")
    sentence = "One of many reasons. " * 100 + "Ship FP32 & build again."
    advice = {"ship": "baseline", "sentence": sentence, "evidence": [], "conditions": []}
    data["result"]["recommendation"] = advice
    page = build_page.to_html(Report.from_json(data))
    assert sentence.replace("&", "&amp;") in page


def test_a_build_without_such_findings_names_the_command() -> None:
    page = build_page.to_html(Report.from_json(written("report-cpu")))
    assert "What costs accuracy" not in page and "<code>optkit explain " in page


def test_a_recipe_of_a_newer_optkit_leaves_the_page_without_findings() -> None:
    data = with_clipping("x")
    data["provenance"]["recipe"]["of_tomorrow"] = 1
    assert explanation_page.of_report(Report.from_json(data)) == []
