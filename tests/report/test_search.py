"""The page of a search: its front, drawn and listed, and what each group of layers costs."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from optkit.documents.tune import Tune
from optkit.report import search
from tests.report.test_result import check

HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def point(latency_ms: float, sqnr_db: float | None, size: int, **more: Any) -> dict[str, Any]:
    return {
        "precision": "int8", "quantized": 3, "nodes": {}, "two_term": [], "placement": "default",
        "sqnr_db": sqnr_db, "divergence": None, "latency_ms": latency_ms, "bytes": size,
        "bytes_moved": None, "fused_layers": None, "landed": 3, "planned": 3, "chosen": False,
        "fresh": None,
    } | more  # fmt: skip


@pytest.fixture
def tune(make: Any) -> dict[str, Any]:
    result = make()["result"]
    fresh = {key: result[key] for key in ("accuracy", "fidelity", "latency", "speedup", "gate")}
    fresh["drop"] = {"value": 0.002, "ci95": [-0.001, 0.004], "evidence": "simulated"}
    layer = {"precision": "int8", "sqnr_db": 25.0, "divergence": None, "chosen": "fp16"}
    return {
        "schema": "optkit.tune/v1", "status": "ok", "error": None, "model": "m", "target": "l4",
        "precisions": ["int8"],
        "budget": {"max_drop": 0.01, "min_sqnr": None, "max_latency_ms": 1.5, "max_bytes": None},
        "quantized": True, "reason": None, "artifact": "out/m-tuned-l4-int8", "digest": "ab" * 32,
        "recipe": "out/m-tuned-l4-int8.tune/recipe.yaml", "command": f"optkit build {HOSTILE}",
        "search": {"seed": 0, "trials": 9, "limit": 9, "failed": 0, "converged": True,
                   "parallel": 1},
        "evidence": {"sqnr_db": "simulated", "latency_ms": "predicted", "bytes": "compiled"},
        "front": [
            point(0.01, 30.0, 100),
            point(0.02, 40.0, 200, chosen=True, fresh=fresh),
            point(0.03, None, 300, quantized=0, precision="fp32", planned=0, landed=0),
        ],
        "layers": [
            {**layer, "layers": [f"{HOSTILE}0", "b"], "share": 0.7},
            {**layer, "layers": ["c"], "share": 0.3, "sqnr_db": None},
        ],
        "excluded": {HOSTILE: "one channel"}, "result": result,
    }  # fmt: skip


def test_the_page_shows_front_and_layers_and_lets_no_name_act(tune: dict[str, Any]) -> None:
    page = search.to_html(Tune.from_json(tune))
    assert page.count("<img") == 0 and "\u202e" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;\ufffd0, b" in page
    assert '<a href="../m-tuned-l4-int8/report.html">' in page
    assert "drop, at most" in page and "1.00 %" in page and "SQNR, at least" not in page
    assert page.count("<circle") == 2  # what equals the reference has no SQNR to be drawn at


def test_the_front_is_reported_with_what_fresh_samples_said(tune: dict[str, Any]) -> None:
    fast, chosen, equal = search.front(Tune.from_json(tune))
    assert (fast.drop, chosen.drop, chosen.spread) == ("–", "0.20 %", "-0.10 to 0.40 %")
    assert (equal.sqnr, equal.landed, chosen.point.chosen) == ("equal", "–", True)


def test_the_hotter_the_larger_the_share(tune: dict[str, Any]) -> None:
    first, second = search.groups(Tune.from_json(tune))
    assert (first.share.heat, first.sqnr.heat, second.sqnr.text) == (4, 3, "equal")


def test_what_it_shows_is_an_object_of_the_schema(tune: dict[str, Any]) -> None:
    check("tune", tune)


def test_the_front_alone_is_a_file_with_a_dot_per_candidate(tune: dict[str, Any]) -> None:
    drawn = list(
        ElementTree.fromstring(search.to_svg(Tune.from_json(tune))).iter(
            "{http://www.w3.org/2000/svg}circle"
        )
    )
    assert len(drawn) == sum(one["sqnr_db"] is not None for one in tune["front"])
    assert sum("chosen" in one.attrib["class"] for one in drawn) == 1
    nothing = search.to_svg(Tune.from_json({**tune, "front": tune["front"][:1]}))
    assert "two candidates" in nothing and "<circle" not in nothing
