"""Targets: a target is one device, found by its name. `cpu` is this machine, whose properties are
detected. All other targets, including kinds of CPU (`cpu-avx2`), are YAML files; this machine may
be one of them.

    target("l4").peak("int8")            # dense operations per second
    target("t4").why_not("fp8")          # None, or the reason in words
    gpus().devices, cpu()                # the devices of this machine
"""

from __future__ import annotations

from optkit.facts.errors import UnknownName, UsageError, check_single, unknown_name
from optkit.ground.devices import spelling
from optkit.ground.devices.gpus import Gpu, Gpus, gpus
from optkit.ground.devices.machine import available_memory, cpu, cpu_target, runs_here
from optkit.ground.devices.nvml import driver_version, has_driver
from optkit.ground.devices.table import Target, aliases, data_names, device_names, read, sources

__all__ = [
    "Gpu", "Gpus", "Target",
    "available_memory", "cpu", "device_names", "driver_version", "gpus",
    "has_driver", "names", "runs_here", "sources", "target", "targets",
]  # fmt: skip


_NO_DEVICE = ("cuda", "gpu", "nvidia", "tensorrt", "trt", "tensorrt-rtx", "onnxruntime", "local")
"""The name of a kind of device or a backend, where one device is needed."""


def target(name: str) -> Target:
    """The target with this name or alias, in any usual spelling. Raises UnknownName with the
    nearest names."""
    wanted = name.strip().lower()
    if wanted == "cpu":
        return cpu_target()
    if wanted in data_names():
        return read(wanted)
    known = aliases().get(wanted) or spelling.target_name(name)
    if known is None:
        raise _unknown(name)
    return read(known)


def _unknown(name: str) -> UsageError:
    """The error for a name of no target."""
    every = [*names(), *aliases()]
    try:
        check_single("--target", name, every)
    except UsageError as error:
        return error
    if name.strip().lower() in _NO_DEVICE:
        return UnknownName(
            f"{name!r} is not a device",
            where="target",
            hint="name the device: `optkit devices` says which this machine has, `optkit "
            "targets` which are known",
        )
    candidates = spelling.candidates(name)
    if len(candidates) > 1:
        return UnknownName(
            f"{name!r} can be any of {len(candidates)} devices",
            where="target",
            hint=f"choose one: {' or '.join(candidates)}",
        )
    return unknown_name("target", name, candidates or every)


def names() -> tuple[str, ...]:
    """The names of all targets, `cpu` first."""
    return ("cpu", *data_names())


def targets() -> tuple[Target, ...]:
    """Every device that optkit knows, `cpu` (this machine) first."""
    return tuple(target(name) for name in names())
