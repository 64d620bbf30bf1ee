"""The devices that optkit knows, and those of this machine, as documents."""

from __future__ import annotations

from optkit.facts.documents.devices import (
    DEVICES,
    TARGETS,
    DeviceFacts,
    Devices,
    GpuRow,
    TargetRow,
    Targets,
)
from optkit.ground.devices import Target, cpu, gpus, target, targets


def describe_targets(name: str | None = None) -> Targets | DeviceFacts:
    """Every device; with `name` one device, each figure with its source. Raises UnknownName."""
    if name is None:
        return Targets(schema=TARGETS, targets=tuple(_row(one) for one in targets()))
    known = target(name)
    facts = {"schema": DEVICES, **vars(known), "sources": known.cited()}
    return DeviceFacts.model_validate(facts, extra="ignore")


def describe_devices() -> Devices:
    """The GPUs and the CPU of this machine."""
    found = gpus()
    return Devices(
        schema=DEVICES,
        gpus=tuple(map(GpuRow.from_object, found.devices)),
        via=found.via,
        reason=found.reason,
        cpu=cpu(),
    )


def _row(target: Target) -> TargetRow:
    return TargetRow(
        name=target.name,
        title=target.title,
        aliases=target.aliases,
        compute_capability=target.compute_capability,
        machine=target.machine,
        features=target.features,
        memory_bytes=target.memory_bytes,
        bandwidth=target.bandwidth,
        precisions=tuple(p for p in target.precisions if target.supports(p)),
        backends=tuple(option.name for option in target.backends),
    )
