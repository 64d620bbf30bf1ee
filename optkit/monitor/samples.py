"""One sample: what a process tree and the GPUs did within an interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuSample:
    """What NVML tells of one GPU; None: this card does not tell it. Shares lie in 0..1.

    util: share of time in which any kernel ran, so 1 does not mean near the card's peak.
    memory_traffic: share of time in which device memory was read or written. pcie_bytes: per
    second, the busier direction; pcie_limit: what the link carries in one direction. throttled: why
    the clock is lower than it could be; that there is nothing to do is no such reason.
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
class Sample:
    """An interval of `seconds` in the life of a process tree.

    running, disk_wait, asleep: shares of the moments looked at, together 1: some thread ran or was
    ready to run; none did, and some waited for a disk (state D); none did either. cores: CPU
    seconds per second. read_bytes, written_bytes: per second, of disks and not of caches; None:
    the system does not tell. memory_bytes: resident, all processes; pages that they share count
    once for each. memory_limit_bytes: what they could hold in all.
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
