"""Fleets: rows of every status, costs, and hostile names."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from optkit.facts.documents.fleet import FLEET, Fleet
from optkit.facts.errors import Impossible
from optkit.show.report import fleet_page as fleets
from optkit.show.report.build_result import failed
from tests.report.test_build_result import check, pending_result

PRICE = {"usd_per_hour": 0.8, "provider": "a cloud", "as_of": "2026-08-17", "verified": False,
         "source": "A"}  # fmt: skip
STEP = {"pair": "l4 int8", "step": "fuse", "label": "fuse", "key": "k", "hit": False,
        "seconds": 1.0}  # fmt: skip
HOSTILE = "<script>alert(1)</script>|`x`\u202e"


def fleet_of(results: list[dict[str, Any]], model: str = "m") -> Fleet:
    data = {
        "schema": FLEET,
        "model": model,
        "digest": "f" * 64,
        "results": results,
        "artifacts": {"l4 int8": {"path": "artifacts/m-l4-int8", "digest": "a" * 64}},
        "targets": {"l4": {"title": "NVIDIA L4", "price": PRICE},
                    "h100": {"title": "NVIDIA H100", "price": None}},
        "steps": [STEP, {**STEP, "pair": "l4 fp16", "hit": True}],
        "versions": {"optkit": "0.1.0"},
    }  # fmt: skip
    return Fleet.from_json(data)


@pytest.fixture
def fleet(make: Any) -> Fleet:
    never = failed(Impossible("no FP8", hint="take int8"), model="m", target="t4", precision="fp8")
    return fleet_of([make()["result"], pending_result(), never.to_json()])


def test_a_fleet_fits_its_schema_and_tells_every_status(fleet: Fleet) -> None:
    check("fleet", fleet.to_json())
    assert fleets.summary(fleet) == "1 built, 1 pending, 1 impossible"
    assert fleets.work(fleet) == "1 steps run in 1 s, 1 found in the store"
    built, pending, never = fleets.rows(fleet)
    result = fleet.results[0]
    assert result.latency is not None and result.artifact is not None
    dollars = 0.8 * 1e6 / (result.latency.throughput * 3600)
    assert built.cost.value == pytest.approx(dollars, rel=5e-3)
    assert built.report == f"../{result.artifact.split('/')[-1]}/report.html"
    assert (pending.cost.text, pending.landed.text, never.report) == ("–", "–", None)
    assert never.headline.sentence == "no FP8; take int8"
    assert fleets.headline(fleet).word == "fail"
    assert fleets.headline(fleet).title == "Nothing to ship"
    text = fleets.to_markdown(fleet)
    assert "no FP8; take int8" in text and "2026-08-17 (unverified)" in text


def test_names_of_strangers_stay_text(make: Any) -> None:
    never = failed(Impossible(HOSTILE), model=HOSTILE, target="t4", precision="fp8")
    found = fleet_of([make()["result"], never.to_json()], HOSTILE)
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(fleets.to_html(found))
    assert tags.count("script") == 1 and "table" in tags  # that of the page itself
    assert "<script>" not in fleets.to_markdown(found)
    assert "<script>alert" not in fleets.to_html(found)
    assert "\u202e" not in fleets.to_html(found) + fleets.to_markdown(found)
