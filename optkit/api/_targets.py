"""The devices that optkit knows, as documents."""

from __future__ import annotations

from optkit.devices import Target, target, targets


def describe_targets(name: str | None = None) -> dict[str, object]:
    """Every device as an optkit.targets/v1 object; with `name` one device, each figure with its
    source. Raises UnknownName."""
    if name is not None:
        return {"schema": "optkit.devices/v1", **target(name).to_json()}
    return {"schema": "optkit.targets/v1", "targets": [_row(one) for one in targets()]}


def _row(target: Target) -> dict[str, object]:
    return {
        "name": target.name,
        "title": target.title,
        "aliases": list(target.aliases),
        "compute_capability": target.compute_capability,
        "machine": target.machine,
        "features": list(target.features),
        "memory_bytes": target.memory_bytes,
        "bandwidth": target.bandwidth,
        "precisions": [p for p in target.precisions if target.supports(p)],
        "backends": [option.name for option in target.backends],
    }
