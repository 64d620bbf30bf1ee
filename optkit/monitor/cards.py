"""The GPUs as NVML tells of them. Whatever a card does not tell stays None."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from optkit.monitor.samples import GpuSample

_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second of one PCIe lane in one direction, by generation, less its line coding."""

_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""nvmlClocksEventReason bits that slow a busy card (nvml.h)."""


class Cards:
    """Every GPU of this machine. `reason`: why there is none to ask."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self.reason: str | None = None
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError:
            self.reason = "nvidia-ml-py is not installed (extra: gpu)"
            return
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except self._nvml.NVMLError as error:
            self.reason = f"NVML: {error}"
        if not self._handles and self.reason is None:
            self.reason = "NVML lists no device"

    def look(self) -> tuple[GpuSample, ...]:
        """One sample of each. NVML counts PCIe bytes for 20 ms a direction before it answers."""
        return tuple(self._one(index, handle) for index, handle in enumerate(self._handles))

    def _one(self, index: int, handle: Any) -> GpuSample:
        def ask(function: str, *arguments: int) -> Any:
            return _told(self._nvml, function, handle, *arguments)

        name = ask("nvmlDeviceGetName")
        rates = ask("nvmlDeviceGetUtilizationRates")
        memory = ask("nvmlDeviceGetMemoryInfo")
        copied = [ask("nvmlDeviceGetPcieThroughput", direction) for direction in (0, 1)]
        generation = ask("nvmlDeviceGetMaxPcieLinkGeneration")
        width = ask("nvmlDeviceGetMaxPcieLinkWidth")
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        lane = _LANE.get(generation)
        return GpuSample(
            index=index,
            name=name.decode() if isinstance(name, bytes) else str(name),
            util=_scaled(rates and rates.gpu, 0.01),
            memory_traffic=_scaled(rates and rates.memory, 0.01),
            memory_bytes=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            pcie_bytes=max((kilobytes * 1024.0 for kilobytes in copied if kilobytes is not None),
                           default=None),
            pcie_limit=None if lane is None or width is None else lane * width,
            power_watts=_scaled(ask("nvmlDeviceGetPowerUsage"), 1e-3),
            power_limit_watts=_scaled(ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            clock_mhz=_scaled(ask("nvmlDeviceGetClockInfo", 1), 1.0),
            clock_limit_mhz=_scaled(ask("nvmlDeviceGetMaxClockInfo", 1), 1.0),
            throttled=tuple(text for bit, text in _REASONS.items() if reasons & bit),
        )  # fmt: skip


def _told(nvml: Any, function: str, *arguments: Any) -> Any:
    """None where the binding lacks the function or the card its answer."""
    call: Callable[..., Any] | None = getattr(nvml, function, None)
    if call is not None:
        with suppress(nvml.NVMLError):
            return call(*arguments)
    return None


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor
