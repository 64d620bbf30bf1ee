"""The CPU of this machine: model, usable cores, features and memory, within the limits of a
container.

Affinity and control groups (v1 and v2) limit cores and memory, so a build inside a container plans
with its real resources.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from optkit.facts.device_facts import CpuInfo, Fact, Option
from optkit.ground.devices import cpuid
from optkit.ground.devices.table import Target, matrix, read

# Features that change which kernels run, or their results. x86 first, then Arm.
_FEATURES = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve",
)  # fmt: skip

# The nearest kind in the table, by the strongest feature that determines integer throughput.
_KINDS = (("amx_int8", "cpu-amx"), ("avx512_vnni", "cpu-avx512-vnni"), ("avx2", "cpu-avx2"))

_VNNI = frozenset({"avx_vnni", "avx512_vnni", "amx_int8"})

_UNLIMITED = 2**60  # cgroup v1 writes a huge number for "no limit"


def cpu() -> CpuInfo:
    """Detect the CPU of this machine. On an emulated CPU it is the one that programs see."""
    return read_cpu(Path("/proc"), Path("/sys"), cpuid.features())


def read_cpu(proc: Path, sys: Path, flags: AbstractSet[str] | None = None) -> CpuInfo:
    """`cpu` from the given /proc and /sys trees; the standard library supplies what they lack.
    `flags`: the features; None: those in /proc."""
    import psutil

    fields = _cpuinfo(proc / "cpuinfo")
    if flags is None:
        flags = set((fields.get("flags") or fields.get("Features") or "").split())
    features = tuple(name for name in _FEATURES if name in flags)
    usable = _affinity()
    physical = _physical_cores(usable, sys)
    quota, memory_limit = cgroup_limits(proc / "self/cgroup", sys / "fs/cgroup")
    threads = physical if quota is None else max(1, min(physical, math.ceil(quota)))
    total = int(psutil.virtual_memory().total)
    return CpuInfo(
        name=fields.get("model name") or platform.processor() or platform.machine(),
        machine=platform.machine(),
        features=features,
        logical_cores=len(usable),
        physical_cores=physical,
        threads=threads,
        memory_bytes=total if memory_limit is None else min(total, memory_limit),
        clock_mhz=_clock_mhz(fields, sys),
        kind=next((kind for flag, kind in _KINDS if flag in features), None),
    )


def cpu_target() -> Target:
    """The target `cpu`: this machine, with rates of the nearest kind in the table."""
    return describe(cpu())


def runs_here(target: Target) -> bool:
    """Whether a CPU target is this machine, or the kind of its CPU."""
    return target.name == "cpu" or (target.is_cpu and target.name == cpu().kind)


def sums_in_16_bits(machine: str, features: Iterable[str]) -> bool:
    """Whether sums of 8-bit products saturate. x86 without VNNI adds pairs of products in 16 bits
    (VPMADDUBSW). Two products of 255 × 127 exceed them; two of 255 × 64 never do."""
    return machine in ("x86_64", "AMD64") and _VNNI.isdisjoint(features)


def kernel_kind(machine: str, features: Iterable[str]) -> str:
    """The kind in the table whose integer kernels run on this CPU; where none was measured, the
    nearest one."""
    if sums_in_16_bits(machine, features):
        return "cpu-avx2"
    return "cpu-amx" if "amx_int8" in features else "cpu-avx512-vnni"


def describe(info: CpuInfo) -> Target:
    """A Target for a detected CPU. Its peaks, its bandwidth and the speeds of its kernels are those
    of its kind, and unverified."""
    facts = {
        "cores": Fact(info.threads, "MACHINE", True, note="physical, usable by this process"),
        "memory_gb": Fact(info.memory_bytes / 1e9, "MACHINE", True),
    }
    if info.clock_mhz is not None:
        note = "nominal; under AVX-512 or AMX it may be lower"
        facts["clock_mhz"] = Fact(info.clock_mhz, "MACHINE", False, note=note)
    kind = None if info.kind is None else read(info.kind)
    if kind is not None:
        note = f"of the kind {info.kind}, not of this machine"
        facts["bandwidth_gbs"] = replace(kind.facts["bandwidth_gbs"], verified=False, note=note)
    return Target(
        name="cpu",
        title=info.name,
        vendor=info.machine if kind is None else kind.vendor,
        arch=info.machine if kind is None else kind.arch,
        aliases=(),
        backends=(Option("onnxruntime", True),),
        facts=MappingProxyType(facts),
        peaks=MappingProxyType({} if kind is None else _peaks(kind, info)),
        precisions=MappingProxyType(matrix("onnxruntime-cpu", info.name, None)),
        ops_per_cycle=MappingProxyType({} if kind is None else kind.ops_per_cycle),
        kernels=MappingProxyType(_kernels(info)),
        machine=info.machine,
        features=info.features,
        identity=MappingProxyType(
            {
                "name": "cpu",
                "cpu": info.name,
                "machine": info.machine,
                "features": list(info.features),
                "threads": info.threads,
            }
        ),
    )


def available_memory() -> int:
    """Bytes that may still be allocated now, inside this process's control group."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit = cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))[1]
    return free if limit is None else min(free, limit)


def cgroup_limits(membership: Path, root: Path) -> tuple[float | None, int | None]:
    """(CPUs, bytes) that the process's control groups and their parents allow; None = no limit."""
    cpus: list[float] = []
    memory: list[int] = []
    for group in _groups(membership, root):
        quota = _words(group / "cpu.max") or [
            *_words(group / "cpu.cfs_quota_us"),
            *_words(group / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and quota[0] not in ("max", "-1"):
            cpus.append(int(quota[0]) / int(quota[1]))
        limit = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
        if limit and limit[0] != "max" and int(limit[0]) < _UNLIMITED:
            memory.append(int(limit[0]))
    return (min(cpus, default=None), min(memory, default=None))


def _groups(membership: Path, root: Path) -> Iterator[Path]:
    """Folders of the groups in /proc/self/cgroup (lines `id:controllers:path`), then parents."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root / controllers if controllers else root
        inside = Path(path.lstrip("/"))
        for part in (inside, *inside.parents):
            yield base / part


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _cpuinfo(path: Path) -> dict[str, str]:
    """The fields of the first processor; empty if there is no such file."""
    try:
        first = path.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _affinity() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _physical_cores(usable: list[int], sys: Path) -> int:
    """Cores behind the usable logical CPUs: hyper-threads of one core count once."""
    siblings = set()
    for number in usable:
        path = sys / f"devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        siblings.add(" ".join(_words(path)) or str(number))
    return max(1, len(siblings))


def _clock_mhz(fields: dict[str, str], sys: Path) -> float | None:
    """Nominal clock: the governor's base frequency, else BogoMIPS / 2 (on x86 the time-stamp
    counter's rate, which is the nominal clock and, unlike `cpu MHz`, stays the same)."""
    base = _words(sys / "devices/system/cpu/cpu0/cpufreq/base_frequency")
    if base:
        return int(base[0]) / 1000  # kHz
    if "flags" in fields and re.fullmatch(r"[\d.]+", fields.get("bogomips", "")):
        return round(float(fields["bogomips"]) / 2)
    return None


def _kernels(info: CpuInfo) -> dict[str, Fact]:
    kind = kernel_kind(info.machine, info.features)
    note = f"of the kind {kind}, not of this machine"
    return {
        name: replace(fact, verified=False, note=note) for name, fact in read(kind).kernels.items()
    }


def _peaks(kind: Target, info: CpuInfo) -> dict[str, Fact]:
    """TFLOP/s = operations per cycle and core × cores × nominal clock."""
    if info.clock_mhz is None:
        return {}
    cycles = info.threads * info.clock_mhz * 1e6
    note = f"{info.kind}: operations per cycle × {info.threads} cores × {info.clock_mhz:.0f} MHz"
    return {
        dtype: Fact(float(fact.value) * cycles / 1e12, "DERIVED", False, True, note)
        for dtype, fact in kind.ops_per_cycle.items()
        if fact.value is not None
    }
