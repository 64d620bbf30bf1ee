from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.facts.errors import Impossible
from optkit.show.report import build_facts, details, figures, layers, view
from optkit.show.report.build_result import (
    BuildRun,
    Findings,
    PrecisionResult,
    failed,
    result,
    to_finish,
)
from optkit.show.report.drawing import charts
from tests.report.conftest import read, read_result


def row(report: dict[str, Any], start: str) -> view.ComparisonRow:
    return next(
        r for r in view.comparison(read_result(report["result"])) if r.label.startswith(start)
    )


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (figures.ms(0.0213), "0.0213 ms"),
        (figures.ms(12.34), "12.3 ms"),
        (figures.ms(1234.5), "1,234 ms"),
        (figures.ms(4.26e-4), "0.426 µs"),
        (figures.ms(None), "–"),
        (figures.dollars(3.4182e-5), "$0.0000342"),
        (figures.dollars(0.0495), "$0.0495"),
        (figures.dollars(1234.5), "$1,234"),
        (figures.dollars(0), "$0"),
        (figures.dollars(None), "–"),
        (figures.size(310_000), "303 KiB"),
        (figures.size(512), "512 B"),
        (figures.size(3 * 2**30), "3 GiB"),
        (figures.points(-0.000001), "0.00 points"),
        (figures.percent(0.98222), "98.22 %"),
        (figures.span((0.5, 1.0), figures.ms), "0.5 to 1 ms"),
        (figures.span((0.5, 1.0), figures.times), "0.50× to 1.00×"),
        (figures.span((512, 2048), figures.size), "512 B to 2 KiB"),
    ],
)
def test_figures_carry_their_units(shown: str, text: str) -> None:
    assert shown == text


@given(st.text())
def test_names_become_one_harmless_line(text: str) -> None:
    shown = figures.name(text)
    assert shown.isprintable() or all(c.isprintable() or c == " " for c in shown if c.isascii())
    assert not set(shown) & set("\x1b\x00\n\r\u202e\u2066\u200b\ud800")
    assert len(shown) <= 400
    shown.encode()  # no lone surrogate is left


def test_the_comparison_shows_both_sides_with_their_evidence(make: Any) -> None:
    report = make()
    latency = row(report, "Latency")
    assert latency.baseline.text == "0.019 ms (band 0.019 to 0.08 ms)"
    assert latency.candidate.value == "0.011 ms"
    assert latency.change.value == "1.73× as fast"
    assert latency.known == ("predicted",)
    assert row(report, "top1").known == ("simulated",)
    assert row(report, "top1").change.value == "drop 0.22 points"
    assert row(report, "Engine size").change.value == "−47 %"
    assert row(report, "Bytes between").known == ("compiled",)
    assert not any(
        r.label.startswith("Slowest") for r in view.comparison(read_result(report["result"]))
    )


def test_two_kinds_of_evidence_are_both_told(make: Any) -> None:
    report = make()
    report["result"]["baseline"]["latency"]["evidence"] = "measured"
    assert row(report, "Latency").known == ("measured", "predicted")


@pytest.mark.parametrize(
    ("kind", "title"), [({"flips": 40}, "Do not ship INT8"), ({}, "Not yet: INT8")]
)
def test_the_headline_is_the_verdict_with_its_reason(
    make: Any, kind: dict[str, Any], title: str
) -> None:
    head = view.headline(read_result(make(**kind)["result"]))
    assert head.title == title
    gate = "drop of top1 4.45" if kind else "latency 0.011 ms is predicted, not measured"
    assert gate in head.sentence


def test_the_headline_of_a_pending_and_of_a_failed_build() -> None:
    waiting = result(
        PrecisionResult("int8", "tensorrt"), None, Findings(), BuildRun(), model="m", target="h100",
        artifact=None, pending=to_finish("a", ["tensorrt"]),
    )  # fmt: skip
    assert view.headline(waiting).sentence == "No engine yet. Finish with: optkit finish a"
    never = failed(
        Impossible("no", where="t4", hint="try int8"), model="m", target="t4", precision="fp8"
    )
    assert view.headline(never) == view.Headline("fail", "Impossible", "t4: no; try int8")
    assert view.comparison(never) == []
    assert view.highlights(never) == []


@pytest.mark.parametrize(
    ("calibration", "words"),
    [
        ({"source": "content:calibration/digits.py:samples"}, "of digits"),
        ({"source": "content:examples/04_house_numbers/samples.py:samples"},
         "from examples/04_house_numbers/samples.py"),
        ({"source": "given:data.py:times_255"}, "from data.py:times_255"),
        ({"source": "recipe:../src/data.py:samples"}, "from ../src/data.py"),
        ({"source": "content:calibration/arrays.py:samples", "args": {"path": "/a/b/own.npz"}},
         "from own.npz"),
        ({"source": "memory"}, "of your calibration data"),
    ],
)  # fmt: skip
def test_the_data_is_named_as_its_user_names_it(
    make: Any, calibration: dict[str, Any], words: str
) -> None:
    result = read_result(make(suspect=True)["result"])
    told = build_facts.described(build_facts.facts(result, {"calibration": calibration}))
    assert f"calibrated on 64 samples {words}" in told


def test_the_histogram_counts_every_run_once(make: Any) -> None:
    report = make(measure=True)
    drawn = charts.histogram(read(report))
    assert drawn is not None
    assert [panel.label for panel in drawn.panels] == ["fp16", "int8"]
    samples = np.asarray(report["latency_samples"]["baseline"])
    panel = drawn.panels[0]
    assert panel.runs == samples.size
    assert panel.beyond == 12  # 1 % of 1,200
    assert max(bar.height for bar in panel.bars) == 100
    assert panel.low <= panel.median.at <= panel.high
    assert all(0 <= bar.at <= 100 for bar in panel.bars)
    assert charts.bands(read_result(report["result"])) is None


def test_equal_runs_still_make_a_drawing(make: Any) -> None:
    report = make(measure=True)
    for side in ("engine", "baseline"):
        report["latency_samples"][side] = [1.0] * 10
    drawn = charts.histogram(read(report))
    assert drawn is not None
    assert len(drawn.panels[0].bars) == 1


def test_predictions_are_drawn_as_bands_and_never_as_runs(make: Any) -> None:
    report = make()
    assert charts.histogram(read(report)) is None
    drawn = charts.bands(read_result(report["result"]))
    assert drawn is not None
    ours = drawn.spans[1]
    assert ours.low == ours.point.at < ours.high < 100


@pytest.mark.parametrize("limit", [0.01, -0.05, 0.2])
def test_the_drop_is_drawn_with_its_limit(make: Any, limit: float) -> None:
    report = make()
    report["gates"][0]["limit"] = limit
    drawn = charts.drop(read(report))
    assert drawn is not None
    assert drawn.mark is not None
    (span,) = drawn.spans
    assert span.low < span.point.at < span.high
    assert (drawn.mark.at > span.high) == (limit > report["result"]["drop"]["ci95"][1])
    assert 2 <= len(drawn.ticks) <= 7
    assert drawn.mark.text in drawn.told


def test_scores_are_drawn_with_their_intervals(make: Any) -> None:
    drawn = charts.scores(read_result(make()["result"]))
    assert drawn is not None
    assert [span.label for span in drawn.spans] == ["fp16", "fp32", "int8"]
    assert all(span.low < span.point.at < span.high for span in drawn.spans)
    assert "int8: 98.00 %, 95 % interval 96.86 to 98.73 %" in drawn.told
    unscored = {**make()["result"], "baseline": None, "references": [], "accuracy": None}
    assert charts.scores(read_result(unscored)) is None


def test_the_course_has_a_median_for_every_round(make: Any) -> None:
    report = make(measure=True)
    drawn = charts.course(read(report))
    assert drawn is not None
    samples = np.reshape(report["latency_samples"]["engine"], (40, 30))
    dots = [dot for dot in drawn.dots if dot.css == "engine"]
    medians = np.median(samples, axis=1)
    assert len(dots) == 40
    assert np.argmax([dot.height for dot in dots]) == medians.argmax()
    ratio = dots[3].height / dots[7].height
    assert ratio == pytest.approx(medians[3] / medians[7], rel=1e-3)
    assert charts.course(read(make())) is None


def test_memory_adds_up_what_the_layers_hold(make: Any) -> None:
    report = make()
    known = read(report)
    ours, theirs = layers.layers(known.layers.engine), layers.layers(known.layers.baseline)
    rows = {row.label: row for row in view.memory(known, ours, theirs)}
    assert rows["Weights in the engine"].candidate.text == figures.size(12 * 64 * 192)
    assert rows["Weights in the engine"].baseline.text == figures.size(12 * 64 * 192 * 2)
    assert rows["Most that one layer reads and writes"].baseline.text == figures.size(
        8 * 17 * 256 * 2
    )
    assert rows["Workspace the compiler may use"].candidate.text == "1 GiB"
    assert "Peak of a run" not in rows
    silent = [replace(layer, weights=None, moved=None) for layer in ours]  # no tensors are listed
    labels = [row.label for row in view.memory(known, silent, silent)]
    assert labels == ["Workspace the compiler may use"]
    gate = {**report["gates"][0], "gate": "max_memory_bytes", "value": 2**30}
    report["gates"].append(gate)
    assert view.memory(read(report), ours, theirs)[-1].candidate.text == "1 GiB"


def test_a_quantile_that_the_runs_do_not_support_says_what_it_needs(make: Any) -> None:
    report = make(measure=True)
    report["latencies"]["engine"][0] |= {"p99_ms": None, "runs": 300}
    found = details.timings(read(report))
    assert [(one.batch, one.label) for one in found] == [
        (1, "fp16"), (1, "int8"), (8, "fp16"), (8, "int8"),
    ]  # fmt: skip
    assert found[1].p99 == "needs 1,000 runs" and found[1].p95.endswith(" ms")
    assert details.timings(read(make()))[0].p99 == "–"


def test_where_the_time_of_a_call_goes_is_reported_for_each_way_to_launch(make: Any) -> None:
    report = make(measure=True)
    one = {"upload_ms": 0.1, "compute_ms": 1.5, "download_ms": 0.2, "enqueue_ms": 0.05, "runs": 9}
    report["result"]["latency"]["phases"] = {"launched": one, "recorded": {**one, "runs": 8}}
    found = details.phases(read_result(report["result"]))
    assert [(row.label, row.how, row.compute) for row in found] == [
        ("int8", "launched", "1.5 ms"), ("int8", "recorded", "1.5 ms"),
    ]  # fmt: skip


def test_what_is_absent_is_reported_with_its_reason(make: Any) -> None:
    told = dict(details.absent(read(make())))
    assert told["Latency distribution"] == "nothing was timed; the latency is predicted"
    assert "Cost" not in told and "Accuracy" not in told
    report = make(measure=True)
    report["layer_fidelity"] = {**report["layer_fidelity"], "rows": [], "reason": "too large"}
    told = dict(details.absent(read(report)))
    assert told["Fidelity layer by layer"] == "too large"
    assert told["Cost"] == "no price of cpu is known"
