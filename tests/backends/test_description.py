"""The sources of an engine's layer list, and a build in which none of them can be read."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.craft.backends.description import described
from optkit.craft.backends.landing import landing
from optkit.craft.backends.tensorrt import TensorRT, _Built
from optkit.facts.codec import from_json, to_json
from optkit.facts.engines import Engine, FusedLayer
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange, TensorInfo
from optkit.ground.devices import target
from optkit.road.steps import perform
from optkit.road.steps.file_names import GRAPH
from tests.backends.standins import Driver

LISTS = Path(__file__).with_name("lists")
JSON, LOG = ((LISTS / f"tensorrt-10-{name}").read_text() for name in
             ("convolutions.json", "encoder.log"))  # fmt: skip
DYNAMIC = (LISTS / "tensorrt-10-dynamic.json").read_text()


def test_the_first_that_is_understood_tells() -> None:
    assert described([JSON, LOG], ()).layers == described([JSON], ()).layers
    assert described(["", LOG], ()).layers == described(["{}", LOG], ()).layers
    assert described(["nonsense", LOG], ()).sized
    assert not described([DYNAMIC], ()).sized and described([DYNAMIC], ()).bytes_moved is None


@pytest.mark.parametrize("texts", [[""], ["", "Layers:\nName: a"], ['{"Layers": []}'], []])
def test_what_nobody_tells_is_unknown_and_says_why(texts: list[str]) -> None:
    found = described(texts, ())
    assert (found.layers, found.bytes_moved, found.sized) == (None, None, False)
    assert (found.note or "").startswith("landing unknown: ")


@pytest.fixture
def model(net: Any, tmp_path: Path) -> Path:
    build = net(carrier="float32")
    y = build.node("MatMul", ["x", build.floats("w", (2, 2))], "fc")
    path: Path = build.write(tmp_path / "m.onnx", y, ("batch", 2), ("batch", 2))
    return path


def compiled(
    backend: TensorRT, model: Path, monkeypatch: pytest.MonkeyPatch, log: str
) -> tuple[Engine, int]:
    """An engine whose builder logs this, and how many builds it took."""
    builds: list[Any] = []

    def build(self: TensorRT, *asked: Any) -> _Built:
        builds.append(asked)
        return _Built(b"plan", log, [])

    monkeypatch.setattr(TensorRT, "_build", build)
    inputs = (TensorInfo("x", "float32", ("batch", 2)),)
    plan = backend.spec(inputs, target("l4"), PRECISIONS["int8"], {"batch": AxisRange(1, 3, 4)})
    planned = {"fc": PRECISIONS["int8"]}
    done = backend.compile(model, plan, planned, model.parent, lambda what, done: None)
    assert (model.parent / done.file).read_bytes() == b"plan"
    return done, len(builds)


def test_on_a_device_the_engine_itself_tells_at_the_optimum(
    backend: TensorRT, driver: Driver, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inspector of `standins`: so a dynamic engine needs no second build."""
    library = importlib.import_module("written_here")
    real = library.Runtime(None).deserialize_cuda_engine
    monkeypatch.setattr(library, "Runtime", lambda log: SimpleNamespace(
        deserialize_cuda_engine=lambda plan: stated(real(plan))
    ))  # fmt: skip
    done, builds = compiled(backend, model, monkeypatch, "Layers: of another form")
    assert builds == 1 and done.note is None
    (row,) = done.landing.rows
    assert (row.landed, row.dtype, row.layer) == (False, "float32", "fc_myl0_1")
    assert done.layers == done.static_layers
    assert done.layers[0].inputs[0].shape == (3, 2)
    assert done.bytes_moved == (2 * 3 + 3 + 5) * 2 * 4
    assert driver.blocks == {}


def stated(engine: Any) -> Any:
    """With a second input of a size, as a profile's optimum tells the others."""
    context = engine.create_execution_context()
    context.sizes["state"] = (2, 2)
    engine.create_execution_context = lambda strategy: context
    return engine


@pytest.mark.parametrize("log", ["", "Layers:\nof a later version", "nonsense"])
def test_an_engine_that_nobody_describes_is_built_and_its_landing_unknown(
    backend: TensorRT, model: Path, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    library = importlib.import_module("written_here")
    monkeypatch.setattr(library, "Runtime", lambda log: None)  # raises when it is used
    done, _ = compiled(backend, model, monkeypatch, log)
    assert (done.layers, done.bytes_moved) == ((), None)
    landing = done.landing
    assert (landing.planned, landing.landed, landing.unknown) == (1, 0, 1)
    assert landing.by_dtype == {"unknown": 1}
    assert [row.landed for row in landing.rows] == [None]
    assert "landing unknown" in (done.note or "")
    assert from_json(Engine, to_json(done)) == done


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_latency_is_predicted_from_the_graph_where_layers_do_not_tell(
    model: Path, tmp_path: Path, dtype: str | None
) -> None:
    (model.parent / GRAPH).write_bytes(model.read_bytes())
    layer = FusedLayer("l", "Myelin", (), (), (), ("fc",), ("fc",), dtype)
    engine = Engine("tensorrt", "l4", "m", 1, (layer,), landing((), {}, {}), static_layers=(layer,))
    asked = {
        "name": "l4",
        "target": {},
        "axes": {"batch": 8},
        "batch": 8,
        "planned": {},
        "fit": "",
        "precision": "fp16",
    }
    notes = {
        name: perform(
            "predict",
            {"graph": model.parent},
            {**asked, "engine": told},
            tmp_path,
            lambda what, done: None,
        )["latency"]["note"]
        for name, told in (
            ("told", to_json(engine)),
            ("nothing", to_json(replace(engine, static_layers=()))),
        )
    }
    assert notes["nothing"].startswith("from the graph")
    assert notes["told"].startswith("from the layers") == (dtype is not None)


def test_where_the_device_tells_nothing_the_builders_log_does(
    backend: TensorRT, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("written_here"), "Runtime", lambda log: None)
    row = (
        "Name: fc_myl0_1, LayerType: gemm, Inputs: [ { Name: x, Dimensions: [-1,2], "
        "Format/Datatype: Int8 }], Outputs: [ { Name: y, Dimensions: [-1,2], Format/Datatype: Half "
        "}], TacticName: k, StreamId: 0, Metadata: [ONNX Layer: fc]"
    )
    done, builds = compiled(backend, model, monkeypatch, f"Layers:\n{row}\nBindings:\nx\ny\n")
    assert (done.landing.landed, done.landing.unknown, builds) == (1, 0, 2)
