"""The conditions on this machine during a timed run, and the reasons why a latency measured under
them is not reliable (`judge`): none on a quiet machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from optkit.facts.measurement import Conditions, GpuConditions, Span
from optkit.ground.devices.nvml import Nvml, slowed

BUSY = 0.10  # of the usable cores' time, taken by others
NEIGHBOURS = 0.50  # of the other cores' time: they share caches and memory
STOLEN = 0.02  # of the usable cores' time, taken by the hypervisor
HELD = 0.01  # of the wall clock, in which a control group let nothing run
SLOWED = 0.10  # how far a clock fell below its highest

_CLOCK = 1  # NVML_CLOCK_SM
_MEMORY_CLOCK = 2
_CORE = 0  # NVML_TEMPERATURE_GPU
_LOOK_SECONDS = 0.5

# The fields of GpuConditions that NVML gives: name, function, its arguments, factor.
_READINGS: tuple[tuple[str, str, tuple[int, ...], float], ...] = (
    ("clock_mhz", "nvmlDeviceGetClockInfo", (_CLOCK,), 1.0),
    ("memory_clock_mhz", "nvmlDeviceGetClockInfo", (_MEMORY_CLOCK,), 1.0),
    ("power_watts", "nvmlDeviceGetPowerUsage", (), 1e-3),
    ("temperature_c", "nvmlDeviceGetTemperature", (_CORE,), 1.0),
)


@contextmanager
def watched(*, gpu: bool = False) -> Iterator[Watch]:
    """Watch the machine, and with `gpu` the GPU that CUDA uses first, until the block ends."""
    watch = Watch(Path("/"), gpu)
    try:
        yield watch
    finally:
        watch.end()


class _Counters(NamedTuple):
    """Seconds and events so far; None if the system does not report them. `usable`, `busy`,
    `steal`: of the cores that this process may use; `ours`: used by this process; `elsewhere`,
    `elsewhere_busy`: of the other cores."""

    wall: float | None
    usable: float | None
    busy: float | None
    steal: float | None
    elsewhere: float | None
    elsewhere_busy: float | None
    ours: float | None
    held: float | None
    throttles: float | None


class Watch:
    """Watches the machine from now until `end`, which sets `conditions`. `root`: the folder with
    /proc and /sys."""

    def __init__(self, root: Path, gpu: bool) -> None:
        self._root = root
        self._cores = _usable_cores()
        self._clocks: list[float] = []  # MHz of the fastest usable core
        self._card = _Card() if gpu else None
        self._looked: float | None = None
        self._loads = [psutil.getloadavg()[0]]
        self._before = self._counters()
        self.conditions = Conditions()

    def look(self) -> None:
        """Read the values without a counter: clocks, power and temperature, at most twice a second.
        Call it while the device works, because an idle device slows its clock."""
        now = time.monotonic()
        if self._looked is not None and now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        clock = _clock_mhz(self._cores)
        if clock is not None:
            self._clocks.append(clock)
        if self._card is not None:
            self._card.look()

    def end(self) -> None:
        """Set `conditions`."""
        self._loads.append(psutil.getloadavg()[0])
        after = self._counters()
        spent = _Counters(*map(_less, after, self._before))
        usable, elsewhere = spent.usable or 0.0, spent.elsewhere or 0.0
        neighbours = _share(spent.elsewhere_busy or 0.0, elsewhere) if elsewhere else None
        self.conditions = Conditions(
            cores=(len(self._cores), os.cpu_count()),
            governor=_read(self._root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            load_average=tuple(round(load, 2) for load in self._loads),
            frequency_mhz=_ends(self._clocks),
            other_cpu_share=_share(max(0.0, (spent.busy or 0.0) - (spent.ours or 0.0)), usable),
            neighbour_cpu_share=neighbours,
            steal_share=_share(spent.steal or 0.0, usable),
            quota_share=None if spent.held is None else _share(spent.held, spent.wall or 0.0),
            throttles=spent.throttles,
            gpu=None if self._card is None else self._card.conditions(),
        )

    def _counters(self) -> _Counters:
        here = elsewhere = busy = busy_elsewhere = steal = 0.0
        for core, times in enumerate(psutil.cpu_times(percpu=True)):
            total, idle, stolen = _core_seconds(times._asdict())
            if core in self._cores:
                here, busy, steal = here + total, busy + total - idle - stolen, steal + stolen
            else:
                elsewhere += total
                busy_elsewhere += total - idle - stolen
        ours = sum(psutil.Process().cpu_times()[:4])
        return _Counters(
            time.monotonic(),
            here,
            busy,
            steal,
            elsewhere,
            busy_elsewhere,
            ours,
            self._held(),
            self._throttles(),
        )

    def _held(self) -> float | None:
        """The seconds in which the control group (v2) of this process had no quota left."""
        group = _read(self._root / "proc/self/cgroup")
        if group is None or not group.startswith("0::"):
            return None
        stat = _read(self._root / "sys/fs/cgroup" / group[3:].lstrip("/") / "cpu.stat")
        rows = dict(line.split() for line in (stat or "").splitlines())
        throttled = rows.get("throttled_usec")
        return None if throttled is None else float(throttled) / 1e6

    def _throttles(self) -> float | None:
        """The number of times that heat slowed a usable core (Intel)."""
        folder = self._root / "sys/devices/system/cpu"
        counts = [
            _read(folder / f"cpu{core}/thermal_throttle/core_throttle_count")
            for core in self._cores
        ]
        known = [int(count) for count in counts if count is not None]
        return float(sum(known)) if known else None


class _Card:
    """The GPU that CUDA uses first, as NVML describes it. Unverified on a card."""

    def __init__(self) -> None:
        self._nvml = Nvml()
        self._handle = self._chosen()
        self._seen: dict[str, list[float]] = {}
        self._throttled: set[str] = set()
        self._others = self._processes()

    def look(self) -> None:
        if self._handle is None:
            return
        for name, function, arguments, scale in _READINGS:
            value = self._nvml.measure(function, self._handle, *arguments, scale=scale)
            if value is not None:
                self._seen.setdefault(name, []).append(value)
        self._throttled.update(self._nvml.throttled(self._handle))

    def conditions(self) -> GpuConditions:
        if self._handle is None:
            return GpuConditions(reason=self._nvml.reason)
        clock, memory_clock, power, temperature = (
            _ends(self._seen.get(name, [])) for name, *_ in _READINGS
        )
        return GpuConditions(
            clock, memory_clock, power, temperature, tuple(sorted(self._throttled)), self._others
        )

    def _processes(self) -> int:
        """The compute processes on the GPU. It is read before this process is one of them, because
        inside a container the driver reports other process ids."""
        if self._handle is None:
            return 0
        processes = self._nvml.ask("nvmlDeviceGetComputeRunningProcesses", self._handle)
        return len(processes or ())

    def _chosen(self) -> object | None:
        """The handle of the GPU by CUDA_VISIBLE_DEVICES. (CUDA numbers the fastest GPU first by
        default.)"""
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        if not self._nvml.handles:
            return None
        if first.startswith("GPU-"):
            handle: object = self._nvml.ask("nvmlDeviceGetHandleByUUID", first)
            return handle
        index = int(first) if first.isdecimal() else 0
        return next(iter(self._nvml.handles[index : index + 1]), None)


def judge(conditions: Conditions) -> list[str]:
    """The reasons why a latency measured under these conditions is not reliable. A value that the
    system does not report is no reason."""
    shares = (
        (conditions.other_cpu_share, BUSY, "other processes took {:.0%} of the CPU"),
        (
            conditions.neighbour_cpu_share,
            NEIGHBOURS,
            "the other cores were busy {:.0%} of the time",
        ),
        (conditions.steal_share, STOLEN, "the hypervisor took {:.0%} of the CPU for other guests"),
        (
            conditions.quota_share,
            HELD,
            "the control group's quota let nothing run {:.0%} of the time",
        ),
    )
    reasons = [text.format(share) for share, limit, text in shares if (share or 0.0) > limit]
    if (ends := conditions.frequency_mhz) and ends[0] < (1 - SLOWED) * ends[1]:
        reasons.append(f"the CPU's clock moved between {ends[0]:.0f} and {ends[1]:.0f} MHz")
    if conditions.throttles:
        reasons.append(f"heat slowed the CPU {conditions.throttles:.0f} times")
    gpu = conditions.gpu or GpuConditions()
    if held := slowed(gpu.throttled or ()):
        reasons.append(f"the GPU's clock was held down: {', '.join(held)}")
    if gpu.others:
        reasons.append(f"other processes on the GPU: {gpu.others}")
    return reasons


def _usable_cores() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _core_seconds(times: Mapping[str, float]) -> tuple[float, float, float]:
    """(all, idle, stolen) seconds of one core so far."""
    twice = ("guest", "guest_nice")  # Linux also counts them as user and nice
    total = sum(seconds for name, seconds in times.items() if name not in twice)
    idle = times.get("idle", 0.0) + times.get("iowait", 0.0)
    return total, idle, times.get("steal", 0.0)


def _clock_mhz(cores: frozenset[int]) -> float | None:
    """The clock of the fastest of these cores, which is the one that works; None if it is not
    known."""
    frequencies = psutil.cpu_freq(percpu=True)
    clocks = [row.current for core, row in enumerate(frequencies) if core in cores and row.current]
    return max(clocks) if clocks else None


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _share(part: float, whole: float) -> float:
    return round(min(1.0, max(0.0, part / whole)), 3) if whole > 0 else 0.0


def _ends(values: list[float]) -> Span | None:
    return (round(min(values), 1), round(max(values), 1)) if values else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
