"""A build that is measured slower than its baseline: the fastest of other placements stays."""

from __future__ import annotations

from pathlib import Path

import pytest

import optkit
from optkit.craft.backends import onnxruntime
from optkit.facts.errors import InputRefused
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Interval, Latency
from optkit.ground import graph
from optkit.ground.execute.runner import Steps
from optkit.road.pipeline import evaluation, faster_placement
from optkit.road.pipeline.job import Build
from optkit.road.steps.bench import TimedPair
from optkit.show.report.contract import report_of
from tests.networks import CHAIN, feed, network

CONVOLUTIONS, PRODUCTS = {"conv3", "conv4"}, {"head"}
Speeds = dict[frozenset[str], float]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A network of convolutions and one product, all in integers where it is placed."""
    graph.save(network(CHAIN), tmp_path / "chain.onnx")
    return tmp_path / "chain.onnx"


def built(
    model: Path, speeds: Speeds, monkeypatch: pytest.MonkeyPatch, high: float = 0.02,
    quantization: dict[str, object] | None = None, baseline_ms: float = 10.0,
    precision: str = "int8",
) -> tuple[optkit.Artifact, list[frozenset[str]]]:  # fmt: skip
    """A build whose speed is a table's, by what it keeps in floats; and the placements that were
    compiled."""
    asked: list[frozenset[str]] = []

    def timed(build: Build) -> TimedPair:
        asked.extend([build.in_floats] if build.in_floats not in asked else [])
        value = speeds[build.in_floats]
        ours, before = (
            Latency(Evidence.MEASURED, ms, 1, 1000 / ms)
            for ms in (baseline_ms / value, baseline_ms)
        )
        interval = Interval(value - high, value + high)
        return TimedPair(ours, before, Difference(value, interval, Evidence.MEASURED))

    monkeypatch.setattr(onnxruntime, "kernel_speeds", lambda target: None)
    monkeypatch.setattr(faster_placement, "_timed", timed)
    keys = {
        "name": "chain", "bench": {"seconds": 0.1, "warmup_seconds": 0.05},
        "quantization": {"two_term": [], **(quantization or {})},
    }  # fmt: skip
    samples = [feed(network(CHAIN), 24)]
    artifact = optkit.build(
        model, target="cpu", precision=precision, recipe=keys, calibration=samples,
        out=model.parent / "artifacts",
    )  # fmt: skip
    return artifact, asked


def decided(artifact: optkit.Artifact) -> dict[str, tuple[str, str | None]]:
    """Precision and reason of each node."""
    return {row.node: (row.precision, row.reason) for row in report_of(artifact).quantization}


def in_integers(artifact: optkit.Artifact) -> set[str]:
    return {node for node, (precision, _) in decided(artifact).items() if precision == "int8"}


FIRST = frozenset[str]()
WITHOUT_CONV, WITHOUT_PRODUCTS = frozenset(CONVOLUTIONS), frozenset(PRODUCTS)
WITHOUT_ALL = WITHOUT_CONV | WITHOUT_PRODUCTS


@pytest.mark.parametrize(
    ("speeds", "left"),
    [
        ({FIRST: 0.8, WITHOUT_CONV: 1.2, WITHOUT_PRODUCTS: 0.9}, PRODUCTS),
        ({FIRST: 0.8, WITHOUT_CONV: 0.7, WITHOUT_PRODUCTS: 1.0}, CONVOLUTIONS),
        ({FIRST: 0.8, WITHOUT_CONV: 0.7, WITHOUT_PRODUCTS: 0.9, WITHOUT_ALL: 1.0}, set()),
        ({FIRST: 0.8, WITHOUT_CONV: 0.9, WITHOUT_PRODUCTS: 0.9, WITHOUT_ALL: 0.7}, PRODUCTS),
        ({FIRST: 0.8, WITHOUT_CONV: 0.7, WITHOUT_PRODUCTS: 0.8, WITHOUT_ALL: 0.8}, WITHOUT_ALL),
    ],
)
def test_the_fastest_placement_is_built(
    model: Path, speeds: Speeds, left: set[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its figures are those of the graph that is in the artifact, which really runs."""
    artifact, asked = built(model, speeds, monkeypatch)
    assert set(asked) == speeds.keys() and in_integers(artifact) == left
    result = report_of(artifact).result
    assert result.engine is not None and result.quantized is not None
    landing = result.engine.landing
    assert (landing.landed if landing else 0) == result.quantized.quantized == len(left)
    told = {reason for _, reason in decided(artifact).values() if "measured" in (reason or "")}
    assert bool(told) == (left != WITHOUT_ALL)
    if left == PRODUCTS:
        (reason,) = told
        after = speeds[WITHOUT_CONV]
        assert reason == (
            "in integers the build is slower: measured 0.80 times as fast as FP32 with its "
            f"convolutions in integers, and {after:.2f} times with them in floats"
        )


@pytest.mark.parametrize(
    ("first", "high", "changes", "baseline_ms"),
    [
        (0.985, 0.001, {}, 10),  # hardly slower
        (0.9, 0.2, {}, 10),  # not surely slower
        (0.8, 0.02, {}, 0.5),  # by an eighth of a millisecond
        (0.8, 0.02, {"effort": "fast"}, 10),
    ],
)
def test_nothing_else_is_tried(
    model: Path, first: float, high: float, changes: dict[str, object], baseline_ms: float,
    cache: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    artifact, asked = built(model, {FIRST: first}, monkeypatch, high, changes, baseline_ms)
    assert set(asked) <= {FIRST} and in_integers(artifact) == WITHOUT_ALL


def test_weights_alone_stay_as_they_were_asked_for(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, asked = built(model, {FIRST: 0.5}, monkeypatch, precision="int4")
    assert asked == [] and decided(artifact)["head"][0] != "fp32"


def test_where_all_is_of_one_kind_only_floats_are_tried(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only: dict[str, object] = {"nodes": {"head": "fp32"}}
    speeds = {FIRST: 0.5, WITHOUT_CONV: 1.0}
    artifact, asked = built(model, speeds, monkeypatch, quantization=only)
    assert asked == [FIRST, WITHOUT_CONV] and in_integers(artifact) == set()


def test_a_placement_whose_outputs_are_not_finite_is_not_taken(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = evaluation.evaluate

    def evaluate(build: Build, runner: Steps) -> None:
        if build.in_floats == WITHOUT_CONV:
            raise InputRefused("the compared graph returns values that are not finite")
        real(build, runner)

    monkeypatch.setattr(faster_placement, "evaluate", evaluate)
    speeds = {FIRST: 0.8, WITHOUT_CONV: 1.2, WITHOUT_PRODUCTS: 1.1}
    artifact, _ = built(model, speeds, monkeypatch)
    assert in_integers(artifact) == CONVOLUTIONS
