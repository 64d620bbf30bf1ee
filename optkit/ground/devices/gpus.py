"""The GPUs of this machine: from NVML, or else from torch, or else one line with the reason why
there are none.

NVML is queried first because it reports the real total memory of the card without creating a CUDA
context.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from optkit.ground.devices.nvml import library
from optkit.ground.devices.table import reported_names


@dataclass(frozen=True)
class Gpu:
    """One device as the driver reports it. `memory_bytes` None: it shares memory with the CPU, and
    reports none."""

    index: int
    name: str
    memory_bytes: int | None
    compute_capability: str
    driver: str | None

    @property
    def bf16(self) -> bool:
        return self._capability >= (8, 0)

    @property
    def fp8(self) -> bool:
        return self._capability >= (8, 9)

    @property
    def target(self) -> str | None:
        """The name of the target of this card; None if the table has none."""
        return reported_names().get(self.name.lower())

    @property
    def _capability(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.compute_capability.split("."))


@dataclass(frozen=True)
class Gpus:
    """The devices, the library that reported them, and, if there are none, the reason."""

    devices: tuple[Gpu, ...]
    via: Literal["nvml", "torch"] | None
    reason: str | None


def gpus() -> Gpus:
    """List the GPUs of this machine; never raises."""
    found, nvml_reason = _ask(_from_nvml)
    if found:
        return Gpus(found, "nvml", None)
    found, torch_reason = _ask(_from_torch)
    if found:
        return Gpus(found, "torch", None)
    return Gpus((), None, f"no GPU: NVML: {nvml_reason}; torch: {torch_reason}")


class _Silent(Exception):
    """The library is missing, or does not report anything."""


def _ask(source: Callable[[], tuple[Gpu, ...]]) -> tuple[tuple[Gpu, ...], str]:
    """The report of a library. It may be in any state, so every exception becomes a reason."""
    try:
        return source(), "lists no device"
    except Exception as error:
        return (), str(error) or type(error).__name__


def _from_nvml() -> tuple[Gpu, ...]:
    try:
        nvml = library()
    except ImportError:
        raise _Silent("nvidia-ml-py is not installed (extra: gpu)") from None
    nvml.nvmlInit()
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        return tuple(_nvml_gpu(nvml, i, driver) for i in range(nvml.nvmlDeviceGetCount()))
    finally:
        nvml.nvmlShutdown()


def _nvml_gpu(nvml: ModuleType, index: int, driver: str) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:  # boards that share memory with the CPU answer "not supported"
        memory = None
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    name = _text(nvml.nvmlDeviceGetName(handle))
    return Gpu(index, name, memory, f"{major}.{minor}", driver)


def _text(value: str | bytes) -> str:
    """Older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def torch_build(version: Path) -> str | None:
    """The build of torch, e.g. "CUDA 12.8 build", from its small file version.py; None if there is
    no such file. Importing torch would take seconds."""
    if not version.exists():
        return None
    text = version.read_text(encoding="utf-8", errors="replace")
    for key, name in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")):
        if built := re.search(rf"^{key}\b[^=\n]*= *['\"]([^'\"]+)", text, re.MULTILINE):
            return f"{name} {built[1]} build"
    return "CPU build"


def _from_torch() -> tuple[Gpu, ...]:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise _Silent("not installed")
    if torch_build(Path(spec.origin).with_name("version.py")) == "CPU build":
        raise _Silent("built without CUDA")
    cuda = importlib.import_module("torch").cuda
    found = []
    for index in range(cuda.device_count()):
        device = cuda.get_device_properties(index)
        capability = f"{device.major}.{device.minor}"
        found.append(Gpu(index, device.name, int(device.total_memory), capability, None))
    return tuple(found)
