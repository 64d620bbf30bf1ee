"""The figures of a series of samples, which the rules read and the output shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from optkit.ground.devices.nvml import slowed
from optkit.satellites.monitor.samples import GpuSample, ProcessSample

Unit = Literal["s", "share", "cores", "B/s", "B", "count"]

AT_WORK = 0.05
"""A GPU whose mean utilisation is lower than this has no work."""

_IDLE = 0.1  # a GPU with less utilisation than this has a gap in its work

Figures = dict[str, float | None]
"""Name (see UNITS) → value; None: unknown on this machine."""

UNITS: Mapping[str, Unit] = {
    "seconds": "s",
    "running": "share",
    "disk_wait": "share",
    "asleep": "share",
    "cores": "cores",
    "cores_share": "share",
    "read_bytes": "B/s",
    "written_bytes": "B/s",
    "memory_bytes": "B",
    "memory": "share",
    "processes": "count",
    "gpus": "count",
    "gpu_util": "share",
    "gpu_gaps": "share",
    "gpu_memory_traffic": "share",
    "gpu_memory": "share",
    "gpu_pcie": "share",
    "gpu_power": "share",
    "gpu_clock": "share",
    "gpu_throttled": "share",
}
"""Every figure and its unit. `memory_bytes`, `memory`, `processes`, `gpus` and `gpu_memory` are
peaks, all others means over time. `memory`: share of what the process tree could get; `gpu_power`,
`gpu_pcie`, `gpu_clock`: share of the card's limit; `gpu_gaps`: share of time with a utilisation
under 10 %."""


def figures(samples: Sequence[ProcessSample], cores: int) -> Figures:
    """Every figure of UNITS. `cores`: how many cores the program may use. The `gpu_` figures
    describe the GPU with the highest utilisation."""
    host: Figures = {
        "seconds": sum(sample.seconds for sample in samples),
        "running": _mean(samples, lambda sample: sample.running),
        "disk_wait": _mean(samples, lambda sample: sample.disk_wait),
        "asleep": _mean(samples, lambda sample: sample.asleep),
        "cores": _mean(samples, lambda sample: sample.cores),
        "cores_share": _mean(samples, lambda sample: sample.cores / cores),
        "read_bytes": _mean(samples, lambda sample: sample.read_bytes),
        "written_bytes": _mean(samples, lambda sample: sample.written_bytes),
        "memory_bytes": _peak(samples, lambda sample: sample.memory_bytes),
        "memory": _peak(samples, lambda s: _share(s.memory_bytes, s.memory_limit_bytes)),
        "processes": _peak(samples, lambda sample: sample.processes),
        "gpus": _peak(samples, lambda sample: len(sample.gpus)),
    }
    return {**host, **_gpu_figures(samples)}


def busiest(samples: Sequence[ProcessSample]) -> int | None:
    """Index of the GPU with the highest mean utilisation. A GPU that does not report it may have
    work, so it comes before GPUs without work."""

    def utilisation(index: int) -> float:
        mean = _mean(samples, _of(index, lambda gpu: gpu.util))
        return AT_WORK if mean is None else mean

    known = {gpu.index for sample in samples for gpu in sample.gpus}
    return max(sorted(known), key=utilisation, default=None)


def _gpu_figures(samples: Sequence[ProcessSample]) -> Figures:
    index = busiest(samples)

    def mean(of: Callable[[GpuSample], float | None]) -> float | None:
        return None if index is None else _mean(samples, _of(index, of))

    return {
        "gpu_util": mean(lambda gpu: gpu.util),
        "gpu_gaps": mean(lambda gpu: None if gpu.util is None else float(gpu.util < _IDLE)),
        "gpu_memory_traffic": mean(lambda gpu: gpu.memory_traffic),
        "gpu_memory": None
        if index is None
        else _peak(samples, _of(index, lambda gpu: _share(gpu.memory_bytes, gpu.memory_total))),
        "gpu_pcie": mean(lambda gpu: _share(gpu.pcie_bytes, gpu.pcie_limit)),
        "gpu_power": mean(lambda gpu: _share(gpu.power_watts, gpu.power_limit_watts)),
        "gpu_clock": mean(lambda gpu: _share(gpu.clock_mhz, gpu.clock_limit_mhz)),
        "gpu_throttled": mean(
            lambda gpu: None if gpu.throttled is None else float(bool(slowed(gpu.throttled)))
        ),
    }


def _of(
    index: int, of: Callable[[GpuSample], float | None]
) -> Callable[[ProcessSample], float | None]:
    def value(sample: ProcessSample) -> float | None:
        return next((of(gpu) for gpu in sample.gpus if gpu.index == index), None)

    return value


def _mean(
    samples: Sequence[ProcessSample], of: Callable[[ProcessSample], float | None]
) -> float | None:
    """Mean over time of the samples that have this value."""
    known = [(value, s.seconds) for s in samples if (value := of(s)) is not None]
    total = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / total if total else None


def _peak(
    samples: Sequence[ProcessSample], of: Callable[[ProcessSample], float | None]
) -> float | None:
    return max((value for sample in samples if (value := of(sample)) is not None), default=None)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
