"""Listing of GPUs, with stand-ins for NVML and torch: the machine that tests has neither."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from optkit.ground.devices import driver_version, gpus, has_driver
from optkit.ground.devices.gpus import torch_build
from optkit.ground.devices.nvml import slowed

GIB = 2**30


class NvmlError(Exception):
    """Stands for pynvml.NVMLError."""


def nvml(cards: list[tuple[Any, int | None, tuple[int, int]]], *, fail: bool = False) -> Any:
    """A module with the functions of nvidia-ml-py that listing needs."""
    module: Any = ModuleType("pynvml")
    module.NVMLError = NvmlError
    module.open = 0

    def start() -> None:
        if fail:
            raise NvmlError("Driver Not Loaded")
        module.open += 1

    def stop() -> None:
        module.open -= 1

    def memory(handle: int) -> SimpleNamespace:
        total = cards[handle][1]
        if total is None:
            raise NvmlError("Not Supported")
        return SimpleNamespace(total=total)

    module.nvmlInit = start
    module.nvmlShutdown = stop
    module.nvmlSystemGetDriverVersion = lambda: b"580.95.05"
    module.nvmlDeviceGetCount = lambda: len(cards)
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetMemoryInfo = memory
    module.nvmlDeviceGetName = lambda handle: cards[handle][0]
    module.nvmlDeviceGetCudaComputeCapability = lambda handle: cards[handle][2]
    return module


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def use_torch(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str, cuda: Any) -> None:
    (folder / "version.py").write_text(version)
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]


def test_nvml_lists_cards_and_their_targets(
    monkeypatch: pytest.MonkeyPatch, no_torch: None
) -> None:
    cards: list[tuple[Any, int | None, tuple[int, int]]] = [
        ("NVIDIA L4", 23034 * 2**20, (8, 9)),
        (b"Tesla T4", 15360 * 2**20, (7, 5)),
        ("NVIDIA H100 80GB HBM3", 81559 * 2**20, (9, 0)),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16 * GIB, (8, 9)),
        ("Orin", None, (8, 7)),
    ]
    module = nvml(cards)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    found = gpus()
    assert (found.via, found.reason, module.open) == ("nvml", None, 0)
    assert [g.target for g in found.devices] == ["l4", "t4", "h100-sxm", None, "jetson-agx-orin"]
    assert [g.bf16 for g in found.devices] == [True, False, True, True, True]
    assert [g.fp8 for g in found.devices] == [True, False, True, True, False]
    assert [g.compute_capability for g in found.devices] == ["8.9", "7.5", "9.0", "8.9", "8.7"]
    assert found.devices[0].memory_bytes == 23034 * 2**20
    assert found.devices[4].memory_bytes is None
    assert found.devices[0].driver == "580.95.05"


def test_torch_answers_where_nvml_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    properties = SimpleNamespace(name="NVIDIA A10", total_memory=24 * GIB, major=8, minor=6)
    cuda = SimpleNamespace(device_count=lambda: 1, get_device_properties=lambda index: properties)
    monkeypatch.setitem(sys.modules, "pynvml", nvml([], fail=True))
    use_torch(monkeypatch, tmp_path, "cuda = '13.0'\n", cuda)
    found = gpus()
    assert found.via == "torch"
    assert [(g.name, g.target, g.memory_bytes, g.driver) for g in found.devices] == [
        ("NVIDIA A10", "a10", 24 * GIB, None)
    ]


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", "CPU build"),
        ("__version__ = '2.13.0+cu128'\ncuda: Optional[str] = '12.8'\n", "CUDA 12.8 build"),
        ("cuda = None\nhip: Optional[str] = '6.4'\n", "ROCm 6.4 build"),
    ],
)
def test_torch_says_for_what_it_is_built(text: str, build: str, tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text(text)
    assert torch_build(tmp_path / "version.py") == build
    assert torch_build(tmp_path / "none.py") is None


def test_a_cpu_build_of_torch_is_never_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def forbidden() -> int:
        raise AssertionError("asked")

    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    use_torch(monkeypatch, tmp_path, "cuda = None\n", SimpleNamespace(device_count=forbidden))
    found = gpus()
    assert found.devices == () and found.via is None
    assert found.reason == (
        "no GPU: NVML: nvidia-ml-py is not installed (extra: gpu); torch: built without CUDA"
    )


def test_one_line_when_there_is_nothing(monkeypatch: pytest.MonkeyPatch, no_torch: None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml([], fail=True))
    found = gpus()
    assert found.reason == "no GPU: NVML: Driver Not Loaded; torch: not installed"
    assert found.reason.count("\n") == 0


def test_the_driver_of_windows_is_seen_inside_wsl(tmp_path: Path) -> None:
    assert not has_driver(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "dxg").touch()
    assert not has_driver(tmp_path)  # any vendor's device
    library = tmp_path / "usr/lib/wsl/lib/libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert has_driver(tmp_path)


def test_the_version_is_the_drivers_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert driver_version(tmp_path) is None
    module = tmp_path / "proc/driver/nvidia/version"
    module.parent.mkdir(parents=True)
    for name in ("Kernel Module", "Open Kernel Module for x86_64"):
        module.write_text(f"NVRM version: NVIDIA UNIX {name}  570.124.06  Wed Feb 26 2025\nGCC")
        assert driver_version(tmp_path) == "570.124.06"
    assert has_driver(tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", nvml([("NVIDIA L4", None, (8, 9))]))
    assert driver_version(tmp_path) == "580.95.05"


def test_a_board_at_its_power_cap_is_not_slowed() -> None:
    assert slowed(("power cap",)) == []
    assert slowed(("power cap", "hardware thermal")) == ["hardware thermal"]
