"""Which TensorRT is loaded for ONNX Runtime's provider; a stand-in for the loader records the
calls."""

from __future__ import annotations

import ctypes
import importlib.util
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

from optkit.craft.backends import ort_providers
from optkit.craft.backends.ort_providers import TensorRTProvider
from optkit.craft.backends.tensorrt_libraries import needed, preload
from optkit.facts.errors import ToolchainMissing
from tests.backends.standins import Driver

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """ONNX Runtime's folder, with a provider that was linked as that of 1.31 is."""
    file = tmp_path / "onnxruntime" / "capi" / "libonnxruntime_providers_tensorrt.so"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\x7fELF\0libcublas.so.13\0libnvinfer.so.10\0libnvonnxparser.so.10\0")
    return file.parents[1]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []

    def load(path: str, mode: int = 0) -> object:
        assert mode == ctypes.RTLD_GLOBAL
        paths.append(path)
        if not Path(path).exists():
            raise OSError(f"{path}: cannot open shared object file")
        return object()

    monkeypatch.setattr(ctypes, "CDLL", load)
    return paths


def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> Path:
    folder = tmp_path / "tensorrt_libs"
    folder.mkdir()
    for name in files:
        (folder / name).touch()
    spec = ModuleSpec("tensorrt_libs", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return folder


def test_the_wheels_libraries_are_loaded_in_their_order(
    runtime: Path, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"lib{name}.so.10" for name in ("nvinfer", "nvinfer_plugin", "nvonnxparser")]
    folder = wheel(tmp_path, monkeypatch, *names, "libnvinfer_builder_resource.so.10")
    preload(runtime)
    assert asked == [str(folder / name) for name in names]


def test_the_provider_loads_them_after_cudas_own(
    driver: Driver, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    ort = SimpleNamespace(
        __file__=str(runtime / "__init__.py"), preload_dlls=lambda: done.append("cuda")
    )
    monkeypatch.setattr(ort_providers, "library", lambda: ort)
    monkeypatch.setattr(ort_providers, "preload", done.append)
    TensorRTProvider().check_here("l4", "m.onnx")
    assert done == ["cuda", runtime]


def test_another_major_version_does_not_do(
    runtime: Path, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path, monkeypatch, "libnvinfer.so.11", "libnvonnxparser.so.11")
    with pytest.raises(ToolchainMissing, match=r"needs libnvinfer\.so\.10") as caught:
        preload(runtime)
    assert asked == ["libnvinfer.so.10"]  # the system's, where there is one
    assert "optkit[tensorrt]" in (caught.value.hint or "")


def test_elsewhere_nothing_is_loaded(asked: list[str], tmp_path: Path) -> None:
    preload(tmp_path)
    assert asked == [] and needed(tmp_path / "none.so") is None


def test_the_extra_installs_what_the_provider_takes() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert extras["tensorrt"] == ["tensorrt>=10.16,<11"]
