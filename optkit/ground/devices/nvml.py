"""The NVIDIA driver of this machine and the reports of its NVML. The functions do not raise: if the
driver, the binding or the card lacks an answer, it is None.

Inside WSL2 the driver is that of the surrounding Windows: its device is /dev/dxg, and its libraries
are in a separate folder.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULE = "proc/driver/nvidia/version"
_WSL = ("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1")  # the device of any vendor, and NVIDIA's driver
_WSL_NVML = "usr/lib/wsl/lib/libnvidia-ml.so.1"
_ROOT = Path("/")

_POWER_CAP = "power cap"  # boards without their own power supply are always at it

_REASONS = {
    0x4: _POWER_CAP,
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""nvmlClocksEventReason bits that slow a busy card (nvml.h)."""


def has_driver(root: Path = _ROOT) -> bool:
    """Whether an NVIDIA driver is installed: its kernel module, or that of WSL2."""
    return (root / _MODULE).exists() or all((root / path).exists() for path in _WSL)


def driver_version(root: Path = _ROOT) -> str | None:
    """The version of the driver, like 580.95.05; None if it is unknown."""
    told = Nvml().ask("nvmlSystemGetDriverVersion")
    if told is not None:
        return told.decode() if isinstance(told, bytes) else str(told)
    with suppress(OSError):
        module = (root / _MODULE).read_text(encoding="utf-8", errors="replace")
        found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", module)
        return found[1] if found else None
    return None


def library() -> ModuleType:
    """The binding to NVML, which finds WSL2's library too. Raises ImportError without it."""
    with suppress(OSError):  # the loader uses a loaded library of the same name
        if has_driver():
            ctypes.CDLL(str(_ROOT / _WSL_NVML))
    return importlib.import_module("pynvml")


class Nvml:
    """The library, and a handle of each GPU. `reason`: why it cannot be used, or None."""

    def __init__(self) -> None:
        self.handles: list[object] = []
        self.reason: str | None = None
        self._library: ModuleType | None = None
        try:
            nvml = self._library = library()
        except ImportError:
            self.reason = "nvidia-ml-py is not installed (extra: gpu)"
            return
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
            self.handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except nvml.NVMLError as error:
            self.reason = f"NVML: {error}"
        if not self.handles and self.reason is None:
            self.reason = "NVML lists no device"

    def ask(self, function: str, *arguments: object) -> Any:
        """The answer of the library; None if the binding lacks the function or the card has no
        answer."""
        nvml = self._library
        if self.reason is None and nvml is not None and hasattr(nvml, function):
            with suppress(nvml.NVMLError):
                return getattr(nvml, function)(*arguments)
        return None

    def measure(
        self, function: str, handle: object, *arguments: object, scale: float
    ) -> float | None:
        """As `ask`, for a number, which is multiplied by `scale`."""
        value = self.ask(function, handle, *arguments)
        return None if value is None else float(value) * scale

    def throttled(self, handle: object) -> tuple[str, ...]:
        """The reasons why the clock is lower than possible, except that the GPU has no work."""
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # its name before driver 535
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        return tuple(text for bit, text in _REASONS.items() if bits & bit)


def slowed(reasons: Iterable[str]) -> list[str]:
    """The reasons in `throttled` that indicate a problem: all except the power cap."""
    return [reason for reason in reasons if reason != _POWER_CAP]
