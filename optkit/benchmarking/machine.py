"""The state of this machine while something is timed, and whether a latency taken then is to be
trusted: `judge` turns what was seen into reasons in words, none for a quiet machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from optkit.devices.nvml import Nvml, slowed

BUSY = 0.10  # of the usable cores' time, taken by others
NEIGHBOURS = 0.50  # of the other cores' time: they share caches and memory
STOLEN = 0.02  # of the usable cores' time, taken by the hypervisor
HELD = 0.01  # of the wall clock, in which a control group let nothing run
SLOWED = 0.10  # how far a clock fell below its highest

_CLOCK = 1  # NVML_CLOCK_SM
_MEMORY_CLOCK = 2
_CORE = 0  # NVML_TEMPERATURE_GPU
_LOOK_SECONDS = 0.5


@contextmanager
def watched(*, gpu: bool = False) -> Iterator[Watch]:
    """Watch the machine, and with `gpu` the GPU that CUDA uses first, until the block ends."""
    watch = Watch(Path("/"), gpu)
    try:
        yield watch
    finally:
        watch.end()


class _Counters(NamedTuple):
    """Seconds and events so far; None: the system does not tell. `usable`, `busy`, `steal`: of the
    cores that this process may use, `ours`: what it used itself; `elsewhere`…: of the others."""

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
    """What happens to the machine from now until `end`. `root`: where /proc and /sys are."""

    def __init__(self, root: Path, gpu: bool) -> None:
        self._root = root
        self._cores = _usable_cores()
        self._clocks: list[float] = []  # MHz of the fastest usable core
        self._card = _Card() if gpu else None
        self._looked: float | None = None
        self._loads = [psutil.getloadavg()[0]]
        self._before = self._counters()
        self.conditions: dict[str, Any] = {}

    def look(self) -> None:
        """What has no counter: clocks, power and temperature, at most twice a second. To be called
        while the device works: an idle one slows its clock."""
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
        """Fill `conditions`, JSON: cores (that this process may use, of all), governor,
        load_average ([before, after], of the last minute), frequency_mhz ([lowest, highest] of the
        fastest usable core), other_cpu_share (0..1: of the usable cores' time, what other processes
        took), neighbour_cpu_share (how busy the other cores were; null: there are none),
        steal_share (of the usable cores' time, what the hypervisor gave to others), quota_share (of
        the wall clock, in which a control group's quota let nothing run), throttles (events that a
        core counted), gpu (as `_Card.told`, null where none is timed). Null: the system does not
        tell."""
        self._loads.append(psutil.getloadavg()[0])
        after = self._counters()
        spent = _Counters(*map(_less, after, self._before))
        usable, elsewhere = spent.usable or 0.0, spent.elsewhere or 0.0
        self.conditions = {
            "cores": [len(self._cores), os.cpu_count()],
            "governor": _read(self._root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "load_average": [round(load, 2) for load in self._loads],
            "frequency_mhz": _ends(self._clocks),
            "other_cpu_share": _share(max(0.0, (spent.busy or 0.0) - (spent.ours or 0.0)), usable),
            "neighbour_cpu_share": _share(spent.elsewhere_busy or 0.0, elsewhere)
            if elsewhere
            else None,
            "steal_share": _share(spent.steal or 0.0, usable),
            "quota_share": None if spent.held is None else _share(spent.held, spent.wall or 0.0),
            "throttles": spent.throttles,
            "gpu": None if self._card is None else self._card.told(),
        }

    def _counters(self) -> _Counters:
        here = elsewhere = busy = busy_elsewhere = steal = 0.0
        for core, times in enumerate(psutil.cpu_times(percpu=True)):
            total, idle, stolen = _core_seconds(times)
            if core in self._cores:
                here, busy, steal = here + total, busy + total - idle - stolen, steal + stolen
            else:
                elsewhere += total
                busy_elsewhere += total - idle - stolen
        ours = sum(psutil.Process().cpu_times()[:4])
        return _Counters(
            time.monotonic(), here, busy, steal, elsewhere, busy_elsewhere, ours, self._held(),
            self._throttles(),
        )  # fmt: skip

    def _held(self) -> float | None:
        """Seconds in which this process's control group (v2) was out of quota."""
        group = _read(self._root / "proc/self/cgroup")
        if group is None or not group.startswith("0::"):
            return None
        stat = _read(self._root / "sys/fs/cgroup" / group[3:].lstrip("/") / "cpu.stat")
        rows = dict(line.split() for line in (stat or "").splitlines())
        return float(rows["throttled_usec"]) / 1e6 if "throttled_usec" in rows else None

    def _throttles(self) -> float | None:
        """Times that heat slowed a usable core (Intel)."""
        folder = self._root / "sys/devices/system/cpu"
        counts = [
            _read(folder / f"cpu{core}/thermal_throttle/core_throttle_count")
            for core in self._cores
        ]
        known = [int(count) for count in counts if count is not None]
        return float(sum(known)) if known else None


class _Card:
    """The GPU that CUDA uses first, as NVML tells of it. Unverified on a card."""

    def __init__(self) -> None:
        self._nvml = Nvml()
        self._handle = self._chosen()
        self._seen: dict[str, list[float]] = {}
        self._throttled: set[str] = set()
        self._others = self._processes()

    def look(self) -> None:
        if self._handle is None:
            return
        for name, function, arguments, scale in (
            ("clock_mhz", "nvmlDeviceGetClockInfo", (_CLOCK,), 1.0),
            ("memory_clock_mhz", "nvmlDeviceGetClockInfo", (_MEMORY_CLOCK,), 1.0),
            ("power_watts", "nvmlDeviceGetPowerUsage", (), 1e-3),
            ("temperature_c", "nvmlDeviceGetTemperature", (_CORE,), 1.0),
        ):
            value = self._nvml.measure(function, self._handle, *arguments, scale=scale)
            if value is not None:
                self._seen.setdefault(name, []).append(value)
        self._throttled.update(self._nvml.throttled(self._handle))

    def told(self) -> dict[str, Any]:
        """JSON: [lowest, highest] of clock_mhz, memory_clock_mhz, power_watts and temperature_c;
        throttled (why the clock was held down); others (processes on it before this one); reason
        (why nothing is known)."""
        if self._handle is None:
            return {"reason": self._nvml.reason}
        ends = {name: _ends(values) for name, values in self._seen.items()}
        return {
            **ends, "throttled": sorted(self._throttled), "others": self._others, "reason": None,
        }  # fmt: skip

    def _processes(self) -> int:
        """Compute processes on it. Read while this process is none of them: inside a container the
        driver's process ids are not its own."""
        if self._handle is None:
            return 0
        found = self._nvml.ask("nvmlDeviceGetComputeRunningProcesses", self._handle)
        return len(found or ())

    def _chosen(self) -> Any:
        """By CUDA_VISIBLE_DEVICES; CUDA itself numbers the fastest first unless told otherwise."""
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        if not self._nvml.handles:
            return None
        if first.startswith("GPU-"):
            return self._nvml.ask("nvmlDeviceGetHandleByUUID", first)
        index = int(first) if first.isdecimal() else 0
        return self._nvml.handles[index] if index < len(self._nvml.handles) else None


def judge(conditions: Mapping[str, Any]) -> list[str]:
    """Why a latency that was taken under these conditions is no good one. What the system does not
    tell is no reason."""
    shares = (
        ("other_cpu_share", BUSY, "other processes took {:.0%} of the CPU"),
        ("neighbour_cpu_share", NEIGHBOURS, "the other cores were busy {:.0%} of the time"),
        ("steal_share", STOLEN, "the hypervisor took {:.0%} of the CPU for other guests"),
        ("quota_share", HELD, "the control group's quota let nothing run {:.0%} of the time"),
    )
    found = [
        text.format(conditions[name])
        for name, limit, text in shares
        if (conditions.get(name) or 0.0) > limit
    ]
    if _fell(conditions.get("frequency_mhz")):
        low, high = conditions["frequency_mhz"]
        found.append(f"the CPU's clock moved between {low:.0f} and {high:.0f} MHz")
    if conditions.get("throttles"):
        found.append(f"heat slowed the CPU {conditions['throttles']:.0f} times")
    card = conditions.get("gpu") or {}
    if held := slowed(card.get("throttled") or ()):
        found.append(f"the GPU's clock was held down: {', '.join(held)}")
    if card.get("others"):
        found.append(f"other processes on the GPU: {card['others']}")
    return found


def _fell(ends: list[float] | None) -> bool:
    return ends is not None and ends[0] < (1 - SLOWED) * ends[1]


def _usable_cores() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _core_seconds(times: Any) -> tuple[float, float, float]:
    """(all, idle, stolen) of one core so far."""
    found = times._asdict()
    for counted_twice in ("guest", "guest_nice"):  # Linux has them in user and nice too
        found.pop(counted_twice, None)
    idle = found["idle"] + found.get("iowait", 0.0)
    return sum(found.values()), idle, found.get("steal", 0.0)


def _clock_mhz(cores: frozenset[int]) -> float | None:
    """Of the fastest of these cores, which works, where the system tells."""
    clocks = psutil.cpu_freq(percpu=True)
    known = [one.current for core, one in enumerate(clocks) if core in cores and one.current]
    return max(known) if known else None


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _share(part: float, whole: float) -> float:
    return round(min(1.0, max(0.0, part / whole)), 3) if whole > 0 else 0.0


def _ends(values: list[float]) -> list[float] | None:
    return [round(min(values), 1), round(max(values), 1)] if values else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
