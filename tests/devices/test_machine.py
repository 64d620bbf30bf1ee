"""Detection of the CPU, on made-up /proc and /sys trees and on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.facts.device_facts import CpuInfo
from optkit.ground.devices import available_memory, cpu, cpuid, names, runs_here, target
from optkit.ground.devices.machine import cgroup_limits, describe, read_cpu, sums_in_16_bits

CPUINFO = """processor\t: 0
model name\t: Example 9000
bogomips\t: 5000.12
flags\t\t: fpu avx2 fma {extra}

processor\t: 1
model name\t: Another
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine() -> None:
    info = cpu()
    assert info.name
    assert 1 <= info.threads <= info.logical_cores <= (os.cpu_count() or 1)
    assert 0 < info.memory_bytes <= psutil.virtual_memory().total
    assert 0 < available_memory() <= info.memory_bytes


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        ("", "cpu-avx2"),
        ("avx_vnni", "cpu-avx2"),
        ("avx512f avx512_vnni", "cpu-avx512-vnni"),
        ("avx512_vnni amx_tile amx_int8", "cpu-amx"),
    ],
)
def test_kind_follows_the_strongest_feature(tmp_path: Path, extra: str, kind: str) -> None:
    proc = tree(tmp_path / "proc", {"cpuinfo": CPUINFO.format(extra=extra)})
    info = read_cpu(proc, tmp_path / "sys")
    assert (info.name, info.kind, info.clock_mhz) == ("Example 9000", kind, 2500)


def test_features_are_those_that_programs_see(tmp_path: Path) -> None:
    """Under an emulator /proc/cpuinfo is the host's."""
    proc = tree(tmp_path / "proc", {"cpuinfo": CPUINFO.format(extra="avx512_vnni")})
    assert read_cpu(proc, tmp_path / "sys", {"avx2"}).kind == "cpu-avx2"
    assert read_cpu(proc, tmp_path / "sys", frozenset()).kind is None


@pytest.mark.skipif(cpuid.features() is None, reason="another C library or processor")
def test_cpuid_claims_nothing_that_the_host_lacks() -> None:
    """The same where nothing is emulated; an emulated processor may have less."""
    assert set(cpuid.features() or ()) <= set(read_cpu(Path("/proc"), Path("/sys")).features)
    assert cpu().features == tuple(f for f in cpu().features if f in (cpuid.features() or ()))


def test_without_proc_and_sys_it_still_answers(tmp_path: Path) -> None:
    info = read_cpu(tmp_path / "proc", tmp_path / "sys")
    assert info.name and info.threads >= 1 and info.memory_bytes > 0
    assert info.kind is None and info.clock_mhz is None
    device = describe(info)
    assert device.supports("int8") and device.peak("int8") is None and device.bandwidth is None


def test_hyper_threads_of_one_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4, 5})
    topology = "devices/system/cpu/cpu{}/topology/thread_siblings_list"
    pairs = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}
    sys = tree(tmp_path / "sys", {topology.format(n): f"{text}\n" for n, text in pairs.items()})
    info = read_cpu(tmp_path / "proc", sys)
    assert (info.logical_cores, info.physical_cores, info.threads) == (4, 2, 2)


def test_quota_bounds_threads_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    proc = tree(tmp_path / "proc", {"self/cgroup": "0::/pod/box\n"})
    sys = tree(
        tmp_path / "sys",
        {
            "fs/cgroup/pod/cpu.max": "150000 100000\n",  # the parent is the tighter one
            "fs/cgroup/pod/box/cpu.max": "400000 100000\n",
            "fs/cgroup/pod/memory.max": "max\n",
            "fs/cgroup/pod/box/memory.max": "1048576\n",
        },
    )
    info = read_cpu(proc, sys)
    assert (info.physical_cores, info.threads, info.memory_bytes) == (8, 2, 1048576)


def test_first_version_of_control_groups(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "membership": "4:memory:/a\n1:cpu,cpuacct:/a\n",
            "memory/a/memory.limit_in_bytes": "2048\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",  # the kernel's "no limit"
            "cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n",
            "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_limits(root / "membership", root) == (0.5, 2048)


def test_no_control_groups_no_limits(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path / "absent", tmp_path) == (None, None)


def info(threads: int = 4, **changes: object) -> CpuInfo:
    fields = {
        "name": "Example 9000", "machine": "x86_64", "features": ("avx2", "avx512_vnni"),
        "logical_cores": 8, "physical_cores": 4, "threads": threads, "memory_bytes": 2**34,
        "clock_mhz": 2500.0, "kind": "cpu-avx512-vnni",
    }  # fmt: skip
    return CpuInfo(**{**fields, **changes})  # type: ignore[arg-type]


@given(st.integers(1, 256), st.floats(500, 6000))
def test_peaks_are_operations_times_cores_times_clock(threads: int, mhz: float) -> None:
    device = describe(info(threads, clock_mhz=mhz))
    assert device.peak("int8") == pytest.approx(256 * threads * mhz * 1e6)
    assert device.peak("fp32") == pytest.approx(64 * threads * mhz * 1e6)
    assert not any(fact.verified for fact in device.peaks.values())
    assert not device.facts["bandwidth_gbs"].verified


def test_fingerprint_is_what_numbers_depend_on() -> None:
    same = describe(info()).fingerprint()
    assert describe(info(clock_mhz=2501.0, memory_bytes=2**33)).fingerprint() == same
    assert describe(info(threads=2)).fingerprint() != same
    assert describe(info(features=("avx2",))).fingerprint() != same
    assert describe(info(name="Example 9001")).fingerprint() != same


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-avx512-vnni", "cpu-amx"])
def test_a_kind_is_known_by_its_features(name: str, tmp_path: Path) -> None:
    kind = target(name)
    here = read_cpu(tmp_path, tmp_path, frozenset(kind.features))
    assert (kind.is_cpu, kind.machine, here.kind) == (True, "x86_64", name)
    assert list(kind.features) == kind.fingerprint()["features"]
    assert kind.fingerprint()["machine"] == "x86_64"
    assert sums_in_16_bits(str(kind.machine), kind.features) == (name == "cpu-avx2")


def test_a_kind_runs_where_the_machine_is_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for features, own in ((("avx2",), "cpu-avx2"), (("avx512_vnni",), "cpu-avx512-vnni")):
        here = info(features=features, kind=own)
        monkeypatch.setattr("optkit.ground.devices.machine.cpu", lambda here=here: here)
        found = [name for name in names() if runs_here(target(name))]
        assert found == ["cpu", own]
    monkeypatch.setattr("optkit.ground.devices.machine.cpu", lambda: info(kind=None))
    assert [name for name in names() if runs_here(target(name))] == ["cpu"]


def test_cpu_target_takes_int8_and_refuses_fp8() -> None:
    device = target("cpu")
    assert device.supports("fp32") and device.supports("int8")
    assert device.support("fp16").answer == "reference"
    assert device.why_not("fp8") == "fp8 has no kernels in ONNX Runtime on this CPU"
