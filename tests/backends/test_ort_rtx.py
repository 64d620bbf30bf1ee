"""ONNX Runtime's plugin provider for TensorRT-RTX: its options, where it is missing, and the
context graphs that it keeps. Where its wheel is installed, the wheel itself is asked."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optkit.craft.backends import ort_rtx
from optkit.craft.backends.ort_rtx import MODULE, PROVIDER, TensorRTRTXProvider
from optkit.craft.backends.ort_session import CPU, Providers
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.facts.errors import InputRefused, ToolchainMissing
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange
from optkit.ground import graph
from optkit.ground.devices import Target, target
from optkit.ground.runtimes import SessionOptions, backend
from tests.backends.test_ort_providers import INPUTS, KNOWN, OUT, convolution

NAME = "onnxruntime-tensorrt-rtx"
HEADER = re.compile(r'constexpr const char\* k\w+ = "(\w+)"')
installed = importlib.util.find_spec(MODULE) is not None
needs_wheel = pytest.mark.skipif(not installed, reason="the plugin's wheel is not installed")


class Here(TensorRTRTXProvider):
    """The CPU's provider, taken for the plugin."""

    provider = "CPUExecutionProvider"

    def check(self) -> None: ...

    def check_here(self, target: str | None, where: str) -> None: ...

    def providers(
        self,
        target: Target | None,
        cuda_graph: bool,
        kept: Path | None = None,
        compiled: Path | None = None,
    ) -> Providers:
        return (CPU,)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What a stand-in for the compiler, which copies the graph, was given."""
    models: list[Path] = []

    def copy(model: Path, native: Any, out: Path) -> None:
        models.append(model)
        shutil.copyfile(model, out)

    monkeypatch.setattr(ort_rtx, "_take", lambda native, settings: None)
    monkeypatch.setattr(ort_rtx, "_compile", copy)
    return models


@pytest.fixture
def model(net: Any, tmp_path: Path) -> Path:
    return convolution(net, tmp_path / "m.onnx", "batch")


# ── options and targets ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("device", [None, "l4", "rtx5090"])
def test_options_have_the_names_of_the_wheels_header(device: str | None, tmp_path: Path) -> None:
    one, place = TensorRTRTXProvider(), target(device) if device else None
    (name, asked), last = one.providers(place, False, tmp_path, tmp_path)
    assert (name, last) == (PROVIDER, CPU)
    assert asked.keys() <= set(KNOWN[PROVIDER])
    assert asked["nv_runtime_cache_path"] == str(tmp_path)
    half = None if place is None else place.marketed_memory_bytes
    assert asked.get("nv_max_workspace_size") == (None if half is None else str(half // 2))


@needs_wheel
def test_the_known_names_are_those_of_the_installed_wheel() -> None:
    version = ort_rtx.installed(f"{ort_rtx.WHEELS[0]}-cu13")
    if f"{KNOWN[f'{PROVIDER}: header']}".split()[-1] != version:
        pytest.skip(f"the names are those of another version than {version}")
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None and spec.origin is not None
    header = Path(spec.origin).with_name("tensorrt_rtx_provider_options.h").read_text()
    options = header.split("namespace env_config_names")[0]
    assert sorted(set(HEADER.findall(options))) == KNOWN[PROVIDER]


def test_a_plan_records_no_launches_and_places_as_tensorrt_rtx() -> None:
    one = TensorRTRTXProvider()
    plan = one.spec(INPUTS, target("l4"), PRECISIONS["int8"], {"batch": AxisRange(8, 8, 8)})
    assert plan.options["cuda_graph"] is False
    for precision in ("int8", "fp8", "int4"):
        scheme = PRECISIONS[precision]
        assert one.rules(target("l4"), scheme) == TensorRTRTX().rules(target("l4"), scheme)
        assert one.refuses(target("l4"), scheme) is None


def test_targets_name_it_and_keep_their_identity() -> None:
    for name in ("a10", "l4", "rtx3090", "rtx4090", "rtx5090"):
        options = [option.name for option in target(name).backends]
        assert (
            options.index("tensorrt-rtx") < options.index(NAME) < options.index("onnxruntime-cuda")
        )
        assert NAME not in [option.name for option in target(name).default_backends]
        assert NAME not in str(target(name).fingerprint())
    for name in ("t4", "a100-sxm-40gb", "h100-sxm", "b200"):  # the plugin lists no such devices
        assert NAME not in [option.name for option in target(name).backends]


# ── refusals ───────────────────────────────────────────────────────────────────────────────────


def test_a_missing_wheel_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainMissing, match="TensorRT-RTX provider is not installed") as told:
        backend(NAME).session(model)
    assert "pip install onnxruntime-ep-nv-tensorrt-rtx" in (told.value.hint or "")


@needs_wheel
def test_the_wheel_without_a_driver(model: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(ToolchainMissing, match=r"no NVIDIA driver: libcuda\.so\.1 does not"):
            backend(NAME).session(model)
    else:
        pytest.skip("this machine has a driver")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A driver, and a wheel of which the plugin is no library."""
    plugin = tmp_path / "plugin.so"
    plugin.write_bytes(b"no library")
    wheel = SimpleNamespace(
        get_library_path=lambda: str(plugin), __spec__=importlib.util.find_spec("json")
    )
    monkeypatch.setitem(sys.modules, MODULE, wheel)  # type: ignore[arg-type]
    monkeypatch.setattr(ort_rtx, "load", lambda: None)
    ort_rtx._register.cache_clear()
    return plugin


def test_a_plugin_that_does_not_load_is_told_in_the_librarys_words(driver: Path) -> None:
    for _ in range(2):  # an error is not remembered
        with pytest.raises(ToolchainMissing, match=r"does not load: .*plugin\.so") as told:
            TensorRTRTXProvider().check()
    assert "driver of CUDA 13" in (told.value.hint or "")


def test_a_plugin_is_registered_once_also_by_an_application(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def register(name: str, path: str) -> None:
        calls.append((name, path))
        raise RuntimeError(f"EP library is already registered under {name}")

    ort = SimpleNamespace(
        register_execution_provider_library=register,
        get_ep_devices=lambda: [SimpleNamespace(ep_name="CPUExecutionProvider")],
    )
    monkeypatch.setattr(ort_rtx, "library", lambda: ort)
    for _ in range(2):
        with pytest.raises(ToolchainMissing, match=r"finds no device: .* 8\.6, 8\.9, and 12\.0"):
            ort_rtx.devices()
    assert calls == [(PROVIDER, str(driver))]
    ort_rtx._register.cache_clear()
    ort.get_ep_devices = lambda: [SimpleNamespace(ep_name=PROVIDER)]  # under another name
    assert len(ort_rtx.devices()) == 1 == len(calls)


def test_an_older_onnx_runtime_takes_no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_rtx, "library", lambda: SimpleNamespace(__version__="1.20.0"))
    with pytest.raises(ToolchainMissing, match=r"ONNX Runtime 1\.20\.0 takes no plugins"):
        ort_rtx.devices()


def test_the_wheels_own_cuda_runtime_is_loaded_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libcudart.so.13.4.36").touch()
    here: set[str] = set()
    asked = []

    def load(path: str, mode: int) -> None:
        asked.append(path)
        if path not in here:
            raise OSError(path)

    monkeypatch.setattr(ctypes, "CDLL", load)
    own = str(tmp_path / "libcudart.so.13.4.36")
    ort_rtx._load_runtime(tmp_path)
    here.add("libcudart.so.13")
    ort_rtx._load_runtime(tmp_path)
    assert asked == ["libcudart.so.13", own, "libcudart.so.13"]


# ── context graphs ─────────────────────────────────────────────────────────────────────────────


def test_a_context_graph_is_kept_for_each_content_of_a_model(
    net: Any, model: Path, compiled: list[Path], tmp_path: Path
) -> None:
    kept = SessionOptions(kept=tmp_path / "devices")
    feed = {"x": np.ones((2, 8, 16, 16), np.float32)}
    with Here().session(model, kept) as first, Here().session(model, kept) as second:
        np.testing.assert_array_equal(first.run(feed)[OUT], second.run(feed)[OUT])
    assert compiled == [model]
    (context,) = (tmp_path / "devices").rglob("*.onnx")
    assert context.name == "context.onnx" and str(context) == second._where
    other = convolution(net, tmp_path / "other.onnx", 2)
    Here().session(other, kept).close()
    assert compiled == [model, other]
    Here().session(model).close()  # nothing is kept, and nothing compiled ahead
    assert compiled == [model, other]


def test_an_engine_is_the_graph_with_its_own_nodes(
    model: Path, compiled: list[Path], tmp_path: Path, unwatched: Any
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    one = Here()
    plan = one.spec(INPUTS, target("l4"), PRECISIONS["fp16"], {"batch": AxisRange(1, 8, 32)})
    engine = one.compile(model, plan, {}, out, unwatched, tmp_path / "devices")
    assert [layer.products for layer in engine.layers if layer.products] == [("conv",)]
    assert compiled == []


def test_a_context_graph_for_others_tells_what_it_fits(
    model: Path, compiled: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputRefused, match="in several parts"):
        Here().write_context(model, target("l4"), tmp_path / "context.onnx")
    assert compiled == [model]
    told = {f"ep_compatibility_info.{PROVIDER}": "7674"}
    monkeypatch.setattr(graph, "metadata", lambda file: told)
    assert Here().write_context(model, target("l4"), tmp_path / "context.onnx") == "7674"


def test_a_graph_that_is_not_compiled_leaves_no_file(model: Path, tmp_path: Path) -> None:
    """The CPU's provider compiles nothing."""
    native = ort_rtx.native_options(model, SessionOptions())
    with pytest.raises(InputRefused, match="Unable to compile any nodes"):
        ort_rtx._compile(model, native, tmp_path / "context.onnx")
    assert not (tmp_path / "context.onnx").exists()
