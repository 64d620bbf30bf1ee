"""The state of this machine while something is timed: what a reader needs to trust a latency."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """Yields a dict that is filled when the block ends:

    cores (usable by this process), load_average (1, 5, 15 min, at the start), frequency_mhz and
    governor (None where the system does not tell), other_cpu_share (0..1: the share of the whole
    machine's CPU time that other processes used meanwhile).
    """
    conditions: dict[str, Any] = {
        "cores": _usable_cores(),
        "load_average": [round(load, 2) for load in psutil.getloadavg()],
        "frequency_mhz": _frequency(),
        "governor": _governor(),
    }
    before = _cpu_seconds()
    try:
        yield conditions
    finally:
        busy, own, total = (b - a for a, b in zip(before, _cpu_seconds(), strict=True))
        others = max(0.0, busy - own) / total if total > 0 else 0.0
        conditions["other_cpu_share"] = round(min(1.0, others), 3)


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _cpu_seconds() -> tuple[float, float, float]:
    """CPU seconds so far: (all processes, this one and its finished children, busy and idle)."""
    times = psutil.cpu_times()._asdict()
    for counted_twice in ("guest", "guest_nice"):  # Linux has them in user and nice too
        times.pop(counted_twice, None)
    total = sum(times.values())
    busy = total - times["idle"] - times.get("iowait", 0.0)
    own = sum(psutil.Process().cpu_times()[:4])
    return busy, own, total


def _frequency() -> float | None:
    frequency = psutil.cpu_freq()
    return round(frequency.current, 1) if frequency and frequency.current else None


def _governor() -> str | None:
    try:
        return _GOVERNOR.read_text(encoding="ascii").strip()
    except OSError:
        return None
