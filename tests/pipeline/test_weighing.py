"""The memory of a run is measured if a gate limits it and the model runs here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.facts.engines import Engine, Landing
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Memory
from optkit.facts.precisions import PRECISIONS
from optkit.ground.devices import target
from optkit.ground.recipe import Recipe
from optkit.road.pipeline import Build, Foreign, Job
from optkit.road.pipeline.judged_build import _memory
from optkit.road.pipeline.peak_memory import weigh
from optkit.road.steps.collect import Samples
from optkit.road.steps.compile import CompiledEngine
from optkit.road.steps.graph import Graph
from optkit.road.steps.peak import PeakMemory


class Steps:
    """Runs nothing: keeps what was asked."""

    objects = Path("store/objects")

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []

    def do(self, step: Any, label: str) -> PeakMemory:
        assert (step.name, label) == ("peak", "measure memory of int8")
        self.asked.append((step.inputs, step.params, step.beside))
        found = {"bytes": 900, "marks": ["other processes on the GPU: 1"]}
        return PeakMemory.of(Foreign(meta=found))


def made(name: str, backend: str, *, measured: bool = True, gated: bool = True) -> Build:
    gates = {"max_memory_bytes": 1000} if gated else {}
    recipe = Recipe.from_dict({"name": "net", "gates": gates})
    build = Build(
        Job(recipe, target(name), PRECISIONS["int8"]),
        backend,
        (),
        PRECISIONS["fp16"],
        measured=measured,
    )
    build.graph, build.probe = Graph(), Samples.of(Foreign())
    engine = Engine(backend, name, f"{backend}.engine", 9, (), Landing(0, 0, {}))
    build.engine = CompiledEngine(engine=engine)
    build.specs = {"engine": SimpleNamespace(spec=SimpleNamespace(options={"cuda_graph": True}))}  # type: ignore[dict-item]
    return build


def test_an_engine_is_weighed_on_its_device_as_it_is_run() -> None:
    build, steps = made("l4", "tensorrt"), Steps()
    weigh(build, steps)  # type: ignore[arg-type]
    ((inputs, params, here),) = steps.asked
    assert inputs.keys() == {"engine", "samples"}
    assert params["engines"] == {"engine": "tensorrt.engine"} and params["backend"] == "tensorrt"
    assert params["session"] == {"target": "l4", "cuda_graph": True}
    assert params["host"]["name"] == "l4" and here["kept"].endswith("devices")
    expected = Memory(Evidence.MEASURED, 900, ("other processes on the GPU: 1",))
    assert _memory(build, None) == expected


def test_a_graph_is_weighed_in_its_process() -> None:
    build, steps = made("cpu", "onnxruntime"), Steps()
    weigh(build, steps)  # type: ignore[arg-type]
    ((inputs, params, _),) = steps.asked
    assert inputs.keys() == {"graph", "samples"} and "engines" not in params


@pytest.mark.parametrize(
    "build",
    [
        made("l4", "tensorrt", gated=False),
        made("l4", "tensorrt-rtx", measured=False),
        made("l4", "onnxruntime-cuda"),
    ],
)
def test_nothing_is_weighed_without_need_or_where_it_cannot_be(build: Build) -> None:
    steps = Steps()
    weigh(build, steps)  # type: ignore[arg-type]
    assert steps.asked == [] and build.peak is None


def test_what_did_not_run_is_what_its_compiler_states() -> None:
    stated = {"host_persistent": 80, "device_persistent": 7, "scratch": 90, "activation": 100,
              "weights": 1000}  # fmt: skip
    build = made("l4", "tensorrt-rtx", measured=False)
    for memory, expected in ((stated, Memory(Evidence.COMPILED, 1107)), ({}, None)):
        engine = Engine("tensorrt-rtx", "l4", "m", 9, (), Landing(0, 0, {}), memory=memory)
        assert _memory(build, engine) == expected
    assert _memory(build, None) is None
