"""The time of an engine's layers and its memory, with stand-ins for the driver and the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.backends.layer_profiler import Spent, by_layer, profiler
from optkit.craft.backends.tensorrt import TensorRT
from optkit.craft.benchmarking import machine_state
from optkit.facts.codec import from_json
from optkit.facts.engines import FusedLayer
from optkit.facts.errors import ToolchainMissing
from optkit.facts.measurement import Conditions, GpuConditions
from optkit.ground.runtimes import ProfiledSession
from optkit.road.steps import perform
from optkit.road.steps.bodies import sessions
from optkit.road.steps.bodies.peak import on_device
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.peak import PeakMemory
from tests.backends.standins import JSON, LOADED, SPENT, Driver, FakeInspector, rows

FEED = {"x": rows(1, 2), "state": rows(5)}
QUICK = 0.01


def test_an_engine_tells_the_time_of_its_layers(opened: Callable[..., Any], driver: Driver) -> None:
    session = opened(cuda_graph=True)
    assert isinstance(session, ProfiledSession)
    for _ in range(3):
        session.run(FEED)
    context, replayed = session._context, driver.launches
    assert replayed == 2  # what runs again is a recorded launch, which would tell nothing
    found = session.layer_times(FEED, {"fc"}, QUICK)
    assert driver.launches == replayed and context.reports > 2
    assert {layer.name: ms for layer, ms in found} == SPENT  # medians: the first run was slow
    product, other, copied = (layer for layer, _ in found)
    assert (product.products, product.nodes, product.dtype) == (("fc",), ("fc",), "float32")
    assert product.inputs[0].shape == (2, 2)  # of the run, not of the engine
    assert other.products == () and (copied.kind, copied.nodes) == ("unlisted", ())


def test_nothing_is_profiled_afterwards(opened: Callable[..., Any], driver: Driver) -> None:
    """A profiler stays on its context, so the context goes."""
    session = opened(cuda_graph=True)
    context = session._context
    session.layer_times(FEED, {"fc"}, QUICK)
    assert context.profiler is not None and not hasattr(session, "_context")
    assert driver.blocks == {} and driver.graphs == {}
    reports = context.reports
    with opened(cuda_graph=True) as again:
        for _ in range(3):
            again.run(FEED)
        assert again._context.profiler is None
    assert driver.launches == 2 and context.reports == reports


@pytest.mark.parametrize("told", [{}, {"other": 1.0}, {"__myl_Conc_myl0_2": 1.0}])
def test_a_profile_that_names_other_layers_is_not_guessed_at(
    opened: Callable[..., Any], driver: Driver, told: dict[str, float]
) -> None:
    session = opened()
    session._engine.spent = told
    with pytest.raises(ToolchainMissing, match="profiler tells no time of"):
        session.layer_times(FEED, {"fc"}, QUICK)
    assert driver.blocks == {}


def listed() -> str:
    inspector = FakeInspector()
    inspector.execution_context = SimpleNamespace(get_tensor_shape=lambda name: (2, 2))
    return inspector.get_engine_information(JSON)


times = st.floats(0, 1e3)


@given(st.dictionaries(st.text(min_size=1), times), times, times)
def test_no_time_is_lost_or_counted_twice(
    others: dict[str, float], product: float, rest: float
) -> None:
    spent = {**others, "fc_myl0_1": product, "__myl_Conc_myl0_2": rest}
    found = by_layer(listed(), {"fc"}, spent)
    assert sum(ms for _, ms in found) == pytest.approx(sum(spent.values()))
    assert len({layer.name for layer, _ in found}) == len(found) == len(spent)


@given(st.lists(st.lists(times, max_size=3), min_size=1, max_size=9))
def test_the_median_is_over_runs_of_what_each_told_together(runs: list[list[float]]) -> None:
    spent = Spent()
    for run in runs:
        spent.begin()
        for ms in run:
            spent.add("a layer", ms)
    expected = np.median([sum(run) for run in runs])
    assert spent.medians().get("a layer", 0.0) == pytest.approx(expected)


def test_the_real_library_takes_the_profiler() -> None:
    trt = pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    spent = Spent()
    spent.begin()
    made = profiler(trt, spent)
    made.report_layer_time("fc", 2.5)
    assert isinstance(made, trt.IProfiler) and spent.medians() == {"fc": 2.5}


@pytest.fixture
def engines(
    backend: TensorRT, net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Path]:
    """Inputs of a step: a graph in two places, and engines of the library of a few lines."""
    monkeypatch.setattr(sessions, "backend", lambda name: backend)
    build = net(carrier="float32")
    y = build.node("MatMul", ["x", build.floats("w", (2, 2))], "fc")
    build.write(tmp_path / GRAPH, y, (2, 2), (2, 2))
    names = ("candidate", "baseline", "candidate_engine", "baseline_engine", "engine", "samples")
    return dict.fromkeys(names, tmp_path)


ENGINES = {"backend": "tensorrt", "session": {"target": "l4"},
           "engines": dict.fromkeys(("candidate_engine", "baseline_engine", "engine"), "m.engine"),
           "host": {}}  # fmt: skip
PROFILED = {**ENGINES, "axes": {}, "shapes": {"x": [2, 2], "state": [3, 2]}, "seconds": QUICK}


def test_the_step_times_both_engines_at_the_optimum(engines: Any, tmp_path: Path) -> None:
    found = perform("attribute", engines, PROFILED, tmp_path, lambda what, done: None)["times"]
    for side in ("candidate", "baseline"):
        assert [row["ms"] for row in found[side]] == list(SPENT.values())
        assert all(row["compute_ms"] is row["memory_ms"] is None for row in found[side])
        product, other, _ = [from_json(FusedLayer, row["layer"]) for row in found[side]]
        assert product.products == ("fc",) and other.outputs[0].shape == (5, 2)
    assert found["nodes"]["fc"]["macs"] == 8


def test_a_backend_without_a_profiler_says_so(
    engines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def session(*args: Any, **options: Any) -> Iterator[Any]:
        yield SimpleNamespace(run=None)

    monkeypatch.setattr(sessions, "backend", lambda name: SimpleNamespace(session=session))
    with pytest.raises(ToolchainMissing, match="tensorrt does not report the times of layers"):
        perform("attribute", engines, PROFILED, tmp_path, lambda what, done: None)


@pytest.mark.parametrize("passing", [0, 3 << 20])
def test_the_memory_of_a_device_is_the_engine_its_buffers_and_what_a_run_takes(
    opened: Callable[..., Any], driver: Driver, passing: int
) -> None:
    """What was taken before counts for nothing; what a run gives back at its end counts."""
    driver.taken, driver.passing = 1 << 30, passing
    found = on_device(opened, FEED, lambda what, done: None)
    buffers = sum(array.nbytes for array in FEED.values()) + 2 * 4 + 3 * 2 * 4  # total, grown
    assert found == PeakMemory(bytes=LOADED + passing + buffers)
    assert driver.blocks == {}


def test_memory_taken_beside_other_processes_is_marked(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def watched(gpu: bool) -> Iterator[Any]:
        conditions = Conditions(other_cpu_share=0.9, gpu=GpuConditions(others=2))
        yield SimpleNamespace(conditions=conditions)

    monkeypatch.setattr(machine_state, "watched", watched)
    found = on_device(opened, FEED, lambda what, done: None)
    assert found.marks == ("other processes on the GPU: 2",)


def test_the_step_measures_an_engine_on_its_device(
    engines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = SimpleNamespace(feed=lambda batch: FEED)
    monkeypatch.setattr("optkit.road.steps.bodies.peak.Spool", lambda path: spool)
    params = {**ENGINES, "batch": 2}
    found = perform("peak", engines, params, tmp_path, lambda what, done: None)
    assert LOADED < found["bytes"] < LOADED + 1024
