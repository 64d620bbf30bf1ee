"""Plugins of TensorRT for a graph's own operators: their library is loaded only if it is trusted,
the engine has their layers, and the products around them run in 8 bits."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import optkit
from optkit.craft.backends import plugin_library
from optkit.craft.backends.build_log import BuildMessages
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.craft.prediction import graph_work
from optkit.facts.errors import InputRefused, OptkitError, RecipeError, UnsafeFile
from optkit.facts.precisions import precision
from optkit.facts.request import Request
from optkit.ground import graph
from optkit.ground.artifact import Artifact
from optkit.ground.devices import target
from optkit.ground.operator_library import PLUGINS_NOTE, OperatorLibrary
from optkit.ground.runtimes import Recurrent, SessionOptions
from optkit.ground.workspace import Workspace
from optkit.road.pipeline import compilation, finishing
from optkit.road.pipeline.finishing import UnfinishedArtifact
from tests.backends.conftest import backend, driver, opened  # noqa: F401
from tests.custom_operators.conftest import plugins
from tests.custom_operators.test_custom_operators import exported


def build(project: Path, library: Path | None, plugin: Path, device: str = "l4", *,
          trust: bool = True, number: str = "int8") -> Artifact:  # fmt: skip
    named = {"custom_ops": library, "plugins": plugin}
    request = Request(
        str(project / "custom.onnx"), calibration=str(project / "samples.npz"),
        overrides=tuple(f"model.{key}={file}" for key, file in named.items() if file is not None),
        trust_remote_code=trust,
    )  # fmt: skip
    return optkit.build(request, target=device, precision=number, out=project / "artifacts")


@dataclass
class Library:
    """A stand-in for the module; `taken`: what its registry was given."""

    takes: bool = True
    taken: list[str] = field(default_factory=list)
    __name__: str = "written_here"

    def get_plugin_registry(self) -> Any:
        return SimpleNamespace(load_library=self.load)

    def load(self, path: str) -> object | None:
        self.taken.append(path)
        return object() if self.takes else None


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_library, "_LOADED", set())


def test_a_library_is_loaded_once(project: Path, plugin: Path) -> None:
    trusted, trt = OperatorLibrary.trust(plugin), Library()
    for _ in range(2):
        plugin_library.load(trt, trusted, "m.onnx", BuildMessages())
    plugin_library.load(trt, None, "m.onnx", BuildMessages())
    assert trt.taken == [str(trusted.place)]


def test_a_refusal_has_the_reason_of_the_log_and_is_no_load(project: Path, plugin: Path) -> None:
    trusted, trt = OperatorLibrary.trust(plugin), Library(takes=False)
    for _ in range(2):
        with pytest.raises(InputRefused, match=r"does not load the library .*: no getCreators"):
            plugin_library.load(trt, trusted, "m.onnx", BuildMessages(errors=["no getCreators"]))
    assert len(trt.taken) == 2


def test_what_nobody_trusted_or_what_has_changed_is_not_loaded(
    project: Path, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, trt = OperatorLibrary.trust(plugin), Library()
    trusted.place.write_bytes(trusted.place.read_bytes() + b"more")
    with pytest.raises(UnsafeFile):
        plugin_library.load(trt, trusted, "m.engine", BuildMessages())
    monkeypatch.setenv("OPTKIT_CACHE", str(tmp_path / "another"))
    with pytest.raises(UnsafeFile, match="nobody has trusted it"):
        plugin_library.load(trt, trusted, "m.engine", BuildMessages())
    assert not trt.taken


def test_an_engine_is_loaded_after_its_plugins(
    opened: Callable[..., Recurrent],  # noqa: F811
    project: Path,
    plugin: Path,
) -> None:
    library = sys.modules["written_here"]
    trt = Library()
    order: list[str] = trt.taken
    runtime = library.Runtime(None)
    deserialize = runtime.deserialize_cuda_engine
    runtime.deserialize_cuda_engine = lambda plan: order.append("engine") or deserialize(plan)
    library.get_plugin_registry, library.__name__ = trt.get_plugin_registry, "written_here"
    trusted = OperatorLibrary.trust(plugin)
    with opened(plugins=trusted):
        assert order == [str(trusted.place), "engine"]
    with pytest.raises(UnsafeFile):
        opened(plugins=OperatorLibrary("libother.so", "0" * 64))
    assert order.count("engine") == 1


def test_plugins_need_the_operators_for_onnx_runtime(project: Path, plugin: Path) -> None:
    with pytest.raises(RecipeError, match="plugins need custom_ops too"):
        build(project, None, plugin)


def test_a_build_without_trust_is_refused(project: Path, library: Path, plugin: Path) -> None:
    with pytest.raises(UnsafeFile, match="opening it runs its code"):
        build(project, library, plugin, trust=False)


@pytest.mark.parametrize(("operator", "told"), [
    ("Other", "libplugins.so gives no plugin for the operator Bound: .*Plugin not found"),
    (None, "does not load the library of its plugins: .*getCreators"),
])  # fmt: skip
def test_a_library_without_the_plugin_is_refused_before_calibration(
    project: Path, library: Path, operator: str | None, told: str
) -> None:
    pytest.importorskip("tensorrt_rtx")
    wrong = library if operator is None else plugins(project, operator)
    with pytest.raises(OptkitError, match=told) as error:
        build(project, library, wrong)
    assert error.value.exit_code == InputRefused.exit_code


def test_a_prediction_counts_a_kernel_of_unknown_work(project: Path, library: Path) -> None:
    costs = graph.costs(graph.load(exported(project, library)), {"batch": 8})
    assert graph_work.uncounted(costs) == ["optkit.test:Bound"]
    (cost,) = [one for one in costs.values() if one.foreign]
    number = precision("fp16")
    without = {name: one for name, one in costs.items() if not one.foreign}
    works, fewer = (graph_work.of_graph(c, number, target("l4"), None) for c in (costs, without))
    (own,) = [work for work in works if work not in fewer]
    assert own.moved == cost.in_bytes + cost.out_bytes and own.kernels == 1


LIBRARIES = """
import importlib.util, sys, tensorrt_rtx
from pathlib import Path
maps = Path("/proc/self/maps").read_text()
print(sum("libtensorrt_rtx.so" in line and " r-xp " in line for line in maps.splitlines()))
"""


def test_the_module_that_the_parser_finds_is_the_one_of_the_wheel(tmp_path: Path) -> None:
    """A second copy of the library in the process would have an own registry."""
    pytest.importorskip("tensorrt_rtx")
    code = f"from optkit.craft.backends.plugin_library import link_parser; link_parser(){LIBRARIES}"
    run = [sys.executable, "-c", code]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    found = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "1"
    assert not list(tmp_path.iterdir())  # its folder of links is gone


@pytest.mark.slow
def test_the_engine_has_the_plugin_and_products_around_it_in_8_bits(
    project: Path, library: Path, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx")
    artifact = build(project, library, plugin)
    sides = json.loads((artifact.path / "report.json").read_text())["layers"]
    for side in (sides["engine"], sides["baseline"]):
        (layer,) = [one for one in side if one["kind"] == "custom_layer"]
        assert layer["nodes"] == ["bound0"] and layer["dtype"] is None and not layer["products"]
        assert {one["dtype"] for one in (*layer["inputs"], *layer["outputs"])} == {"float32"}
    assert artifact.result["engine"]["landing"]["landed"] == 3
    assert "not fully counted: optkit.test:Bound" in artifact.result["latency"]["note"]
    assert b"Bound" in (artifact.path / "tensorrt-rtx.engine").read_bytes()

    kept = OperatorLibrary.of(artifact.model_path, PLUGINS_NOTE)
    assert kept is not None and kept == artifact.plugins
    assert artifact.manifest.files["plugins/libplugins.so"].sha256 == kept.sha256
    slim = optkit.package(artifact.path, format="slim", out=project)
    assert {"operators/libbound.so", "plugins/libplugins.so"} <= {
        "/".join(Path(file.name).parts[-2:]) for file in slim.files
    }

    given: list[SessionOptions] = []
    with monkeypatch.context() as patches, contextlib.suppress(AttributeError):
        patches.setattr(TensorRTRTX, "session", lambda self, path, options: given.append(options))
        optkit.load(artifact.path).session()  # the stand-in gives none
    assert [options.plugins for options in given] == [kept]
    unfinished = UnfinishedArtifact(artifact, target("l4"), "tensorrt-rtx", ())
    runner = Workspace(listener=None).runner()
    restored = finishing._restore(unfinished, runner)
    compilation.compile_(restored, runner)  # as `optkit finish` does on the device
    assert restored.engine is not None and restored.engine.engine.landing.landed == 3
    assert compilation.device_session(restored).options().plugins == kept

    moved = tmp_path / "moved"
    shutil.copytree(artifact.path, moved)
    monkeypatch.setenv("OPTKIT_CACHE", str(tmp_path / "another machine"))
    with pytest.raises(UnsafeFile):
        kept.open_path("model.onnx")
    optkit.load(moved, trusted=True).session().close()
    assert kept.open_path("model.onnx").read_bytes() == plugin.read_bytes()


@pytest.mark.slow
def test_other_bytes_are_another_build_and_a_cpu_needs_no_plugins(
    project: Path, library: Path, plugin: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    first = build(project, library, plugin, number="fp16")
    other = project / plugin.name
    other.write_bytes(plugin.read_bytes() + b"more")
    again = build(project, library, other, number="fp16")
    assert first.digest != again.digest and first.plugins != again.plugins
    names = {node.op_type for node in onnx.load(again.model_path).graph.node}
    assert "Bound" in names
    assert build(project, library, plugin, "cpu", number="fp32").plugins is None
