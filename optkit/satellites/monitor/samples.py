"""One sample: what a process tree and the GPUs did within an interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuSample:
    """The report of NVML about one GPU; None: the card does not report it. Shares are in [0, 1].

    util: share of time in which any kernel ran; 1 does not mean that the card is near its peak.
    memory_traffic: share of time in which device memory was read or written. pcie_bytes: bytes per
    second in the busier direction; pcie_limit: the rate of the link in one direction. throttled:
    reasons for a lower clock, without the reason that the GPU has no work.
    """

    index: int
    name: str
    util: float | None = None
    memory_traffic: float | None = None
    memory_bytes: int | None = None
    memory_total: int | None = None
    pcie_bytes: float | None = None
    pcie_limit: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    clock_mhz: float | None = None
    clock_limit_mhz: float | None = None
    throttled: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ProcessSample:
    """An interval of `seconds` in the life of a process tree.

    running, disk_wait, asleep: shares of the observed moments; their sum is 1. running: a thread
    ran or was ready to run. disk_wait: no thread did, and at least one waited for a disk (state D).
    asleep: neither. cores: CPU seconds per second. read_bytes, written_bytes: bytes per second of
    disks, without caches; None: unknown. memory_bytes: resident memory of all processes; a shared
    page counts once for each process. memory_limit_bytes: the memory that they could use in total.
    """

    seconds: float
    running: float
    disk_wait: float
    asleep: float
    cores: float
    read_bytes: float | None
    written_bytes: float | None
    memory_bytes: int
    memory_limit_bytes: int
    processes: int
    gpus: tuple[GpuSample, ...] = ()
