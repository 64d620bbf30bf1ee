"""Samples of the GPUs, from NVML. A value that a card does not report is None."""

from __future__ import annotations

from pathlib import Path

from optkit.ground.devices.nvml import Nvml
from optkit.satellites.monitor.samples import GpuSample

_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second of one PCIe lane in one direction, by generation, without the line coding."""

_DEVICES = Path("/dev")


class Cards:
    """Every GPU of this machine. `reason`: why NVML cannot be queried, or None."""

    def __init__(self) -> None:
        self._nvml = Nvml()
        self.reason = self._nvml.reason

    def look(self) -> tuple[GpuSample, ...]:
        """One sample of each GPU. NVML counts PCIe bytes for 20 ms per direction before it answers.
        Without NVML, the device files of the driver still show how many GPUs there are."""
        if self.reason is not None:
            return tuple(GpuSample(i, name) for i, name in enumerate(_device_names()))
        return tuple(self._one(index, handle) for index, handle in enumerate(self._nvml.handles))

    def _one(self, index: int, handle: object) -> GpuSample:
        ask, measure = self._nvml.ask, self._nvml.measure
        name = ask("nvmlDeviceGetName", handle)
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        copied = [
            measure("nvmlDeviceGetPcieThroughput", handle, direction, scale=1024.0)
            for direction in (0, 1)
        ]
        lane = _LANE.get(ask("nvmlDeviceGetMaxPcieLinkGeneration", handle))
        width = ask("nvmlDeviceGetMaxPcieLinkWidth", handle)
        return GpuSample(
            index=index,
            name=name.decode() if isinstance(name, bytes) else str(name),
            util=None if rates is None else float(rates.gpu) * 0.01,
            memory_traffic=None if rates is None else float(rates.memory) * 0.01,
            memory_bytes=None if memory is None else int(memory.used),
            memory_total=None if memory is None else int(memory.total),
            pcie_bytes=max((rate for rate in copied if rate is not None), default=None),
            pcie_limit=None if lane is None or width is None else lane * width,
            power_watts=measure("nvmlDeviceGetPowerUsage", handle, scale=1e-3),
            power_limit_watts=measure("nvmlDeviceGetEnforcedPowerLimit", handle, scale=1e-3),
            clock_mhz=measure("nvmlDeviceGetClockInfo", handle, 1, scale=1.0),
            clock_limit_mhz=measure("nvmlDeviceGetMaxClockInfo", handle, 1, scale=1.0),
            throttled=self._nvml.throttled(handle),
        )


def _device_names() -> list[str]:
    """Names of the driver's device files, one per GPU: nvidia0, …"""
    return sorted(path.name for path in _DEVICES.glob("nvidia[0-9]*"))
