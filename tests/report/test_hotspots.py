"""The layers of a build by their time, and the same work in the baseline."""

from __future__ import annotations

from typing import Any

import pytest

from optkit.facts.documents.report import BothSides, Report, TimedLayers
from optkit.facts.evidence import Evidence
from optkit.show.report import build_page
from optkit.show.report.hotspots import Hotspots, hotspots
from optkit.show.report.layers import layers
from tests.report.conftest import HOSTILE, read


def timed(report: Report, engine: tuple[float, ...], baseline: tuple[float, ...]) -> Report:
    times = TimedLayers(
        evidence=Evidence.PREDICTED,
        note="by a model",
        milliseconds=BothSides(engine=engine, baseline=baseline),
    )
    return report.model_copy(update={"layer_times": times, "findings": ()})


def found(report: Report) -> Hotspots | None:
    return hotspots(report, layers(report.layers.engine), layers(report.layers.baseline))


@pytest.fixture
def whole(make: Any) -> Report:
    """Twelve products of increasing time and one other layer, which takes the most."""
    report = read(make())
    ours = tuple(float(n) for n in range(1, 14))
    return timed(report, ours, tuple(2 * ms for ms in ours))


def test_the_costliest_layers_come_first_and_the_shares_add_up(whole: Report) -> None:
    time = found(whole)
    assert time is not None
    rows = [*time.first, *time.others]
    assert [row.ms for row in rows] == [float(n) for n in range(13, 0, -1)]
    assert len(time.first) == 8 and time.share == pytest.approx(sum(range(6, 14)) / 91)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert sum(row.share for row in time.works) == pytest.approx(1)
    assert (time.total, time.baseline) == (91, 182)
    works = [row.candidate or 0.0 for row in time.works]
    assert works == sorted(works, reverse=True) and sum(works) == 91


def test_work_that_no_layer_does_has_no_time(make: Any) -> None:
    """Not "0 ms": a layer that takes no time and a layer that does not exist differ."""
    data = make()
    for layer in data["layers"]["baseline"]:
        layer |= {"kind": f"only of the baseline, {layer['kind']}", "nodes": layer["products"]}
    report = timed(read(data), (1.0,) * 13, (2.0,) * 13)
    time = found(report)
    assert time is not None
    sides = {(row.candidate is None, row.baseline is None) for row in time.works}
    assert sides == {(True, False), (False, True)}
    assert sum(row.share for row in time.works) == pytest.approx(1)
    section = build_page.to_html(report).split('<section id="time"')[1].split("</section>")[0]
    assert "no layer" in section and ">0 ms<" not in section


def test_a_product_stands_beside_its_time_in_the_baseline(whole: Report) -> None:
    time = found(whole)
    assert time is not None
    other, *products = [*time.first, *time.others]
    assert other.name == "norm_softmax" and other.baseline is None  # it names no node
    assert [row.baseline for row in products] == [2 * row.ms for row in products]


def test_times_that_are_not_of_these_layers_are_not_shown(whole: Report) -> None:
    assert found(timed(whole, (1.0,), (1.0,))) is None
    assert found(timed(whole, (0.0,) * 13, (0.0,) * 13)) is None
    assert found(whole.model_copy(update={"layer_times": None})) is None


def test_the_page_has_the_section_if_the_times_are_known(make: Any, whole: Report) -> None:
    page = build_page.to_html(whole)
    assert "Where the time goes" in page and "8 of 13 layers take 84 % of the time" in page
    assert page.index("Where the time goes") < page.index("Layer by layer")
    without = build_page.to_html(read(make()))
    assert "Where the time goes" not in without and "Time of each layer" in without
    strange = timed(read(make(lambda name: f"{name}{HOSTILE}")), (1.0,) * 13, (1.0,) * 13)
    assert HOSTILE not in build_page.to_html(strange)


def test_the_new_fields_are_absent_if_nothing_is_known_and_are_read_again(
    make: Any, whole: Report
) -> None:
    assert not {"layer_times", "findings"} & set(read(make()).to_json())
    data = whole.to_json()
    assert data["layer_times"]["evidence"] == "predicted" and data["findings"] == []
    assert Report.from_json(data) == whole
