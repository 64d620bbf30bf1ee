from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from optkit.craft.benchmarking import machine_state
from optkit.craft.benchmarking.machine_state import Watch, judge, watched
from optkit.facts.codec import from_json
from optkit.facts.measurement import Conditions, GpuConditions

QUIET = Conditions(
    cores=(2, 4), load_average=(0.1, 1.2), frequency_mhz=(2995.0, 3000.0), other_cpu_share=0.01,
    neighbour_cpu_share=0.2, steal_share=0.0, throttles=0.0,
)  # fmt: skip


def test_conditions_are_plain_json() -> None:
    with watched() as watch:
        watch.look()
        time.sleep(0.02)
    conditions = watch.conditions
    data = json.loads(json.dumps(conditions.to_json(), allow_nan=False))
    assert from_json(Conditions, data) == conditions
    assert data["gpu"] is None and data["cores"] == [*(conditions.cores or ())]
    assert 1 <= data["cores"][0] <= data["cores"][1]
    assert 0 <= data["other_cpu_share"] <= 1


def test_shares_are_of_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores 1 and 2 of three: 20 s pass on each, of which this process takes 4."""

    def core(busy: float, steal: float, idle: float) -> Any:
        return psutil._pslinux.scputimes(busy, 0, 0, idle, 0, 0, 0, steal, 0, 0)

    before = [core(0, 0, 0)] * 3
    after = [core(15, 0, 5), core(6, 2, 12), core(2, 0, 18)]
    own = [(0, 0, 0, 0), (3, 1, 0, 0)]
    readings = iter(zip((before, after), own, strict=True))
    now: list[Any] = []

    def cpu_times(percpu: bool) -> Any:
        now[:] = next(readings)
        return now[0]

    class Process:
        def cpu_times(self) -> Any:
            return now[1]

    monkeypatch.setattr(machine_state, "_usable_cores", lambda: frozenset({1, 2}))
    monkeypatch.setattr(machine_state.psutil, "cpu_times", cpu_times)
    monkeypatch.setattr(machine_state.psutil, "Process", Process)
    with watched() as watch:
        pass
    conditions = watch.conditions
    assert conditions.other_cpu_share == 0.1  # 8 busy less 4 of its own, of 40
    assert conditions.steal_share == 0.05
    assert conditions.neighbour_cpu_share == 0.75


def test_another_process_shows_up_in_the_readings() -> None:
    busy = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(busy) as other:
        try:
            with watched() as watch:
                time.sleep(0.6)
        finally:
            other.kill()
    assert watch.conditions.cores and watch.conditions.other_cpu_share
    assert watch.conditions.other_cpu_share > 0.3 / watch.conditions.cores[0]


def test_what_a_control_group_and_heat_did_is_read(tmp_path: Path) -> None:
    stat = tmp_path / "sys/fs/cgroup/jobs/cpu.stat"
    count = tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    for path in (tmp_path / "proc/self/cgroup", stat, count):
        path.parent.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/jobs\n")
    stat.write_text("usage_usec 5\nthrottled_usec 1000000\n")
    count.write_text("3\n")
    watch = Watch(tmp_path, gpu=False)
    watch._cores = frozenset({0})
    watch._before = watch._counters()._replace(wall=watch._before.wall)
    stat.write_text("usage_usec 9\nthrottled_usec 61000000\n")
    count.write_text("5\n")
    watch.end()
    assert watch.conditions.quota_share == 1.0  # a minute, within less
    assert watch.conditions.throttles == 2


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({"other_cpu_share": 0.3}, "other processes took 30%"),
        ({"neighbour_cpu_share": 0.9}, "the other cores were busy 90%"),
        ({"steal_share": 0.04}, "hypervisor took 4%"),
        ({"quota_share": 0.5}, "quota let nothing run 50%"),
        ({"frequency_mhz": (1200.0, 3000.0)}, "between 1200 and 3000 MHz"),
        ({"throttles": 2.0}, "heat slowed the CPU 2 times"),
        (
            {"gpu": GpuConditions(throttled=("power cap", "hardware thermal"), others=0)},
            "the GPU's clock was held down: hardware thermal",
        ),
        ({"gpu": GpuConditions(throttled=("power cap", "power brake"))}, "held down: power brake"),
        ({"gpu": GpuConditions(throttled=(), others=1)}, "other processes on the GPU: 1"),
    ],
)
def test_each_bad_condition_has_its_reason(seen: dict[str, Any], told: str) -> None:
    (reason,) = judge(replace(QUIET, **seen))
    assert told in reason


def test_a_quiet_machine_and_an_unknown_one_have_no_reasons() -> None:
    assert judge(QUIET) == []
    assert judge(Conditions()) == []
    assert judge(Conditions(gpu=GpuConditions(reason="NVML lists no device"))) == []
    capped = GpuConditions(throttled=("power cap",), others=0)  # an L4 always is
    assert judge(Conditions(gpu=capped)) == []


def test_what_nvml_tells_of_the_card_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    clocks = iter([1500, 5000, 1200, 5000])
    nvml: Any = ModuleType("pynvml")
    nvml.NVMLError = NVMLError
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetCount = lambda: 2
    nvml.nvmlDeviceGetHandleByIndex = lambda index: f"card {index}"
    nvml.nvmlDeviceGetClockInfo = lambda handle, kind: next(clocks)
    nvml.nvmlDeviceGetPowerUsage = lambda handle: {"card 1": 70_000}[handle]
    nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 0x5  # idle, power cap
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: ["theirs"]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    monkeypatch.setattr(machine_state, "_LOOK_SECONDS", 0.0)
    with watched(gpu=True) as watch:
        watch.look()
        watch.look()
    assert watch.conditions.to_json()["gpu"] == {
        "clock_mhz": [1200.0, 1500.0], "memory_clock_mhz": [5000.0, 5000.0],
        "power_watts": [70.0, 70.0], "throttled": ["power cap"], "others": 1, "reason": None,
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    with watched(gpu=True) as watch:
        watch.look()
    assert watch.conditions.gpu is not None
    assert watch.conditions.gpu.to_json() == {"reason": watch.conditions.gpu.reason}
    assert "nvidia-ml-py is not installed" in str(watch.conditions.gpu.reason)
