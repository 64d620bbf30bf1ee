"""The pairs of a target and a precision that a plan has rows for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optkit.craft.prediction import graph_work
from optkit.craft.prediction.card_lookup import measured
from optkit.facts.errors import Impossible
from optkit.facts.precisions import PRECISIONS, Precision, precision
from optkit.ground.devices import Target, names
from optkit.ground.devices import target as find_target

EVERY = "all"
"""The name that stands for every GPU, each with those precisions that it has."""

# Whose GPUs the model of latency describes: bytes from one memory, operations of matrix units.
_VENDORS = ("nvidia", "amd", "apple")

# What is planned where no precision is named, as far as the target has it.
_USUAL = ("fp16", "int8", "fp8", "int4")


def devices(asked: Sequence[str]) -> Iterable[Target]:
    """Each target once. Raises UnknownName."""
    if EVERY in asked:
        known = [device for device in map(find_target, names()) if device.vendor in _VENDORS]
        return [measured(device) for device in known]
    found = {device.name: device for device in map(find_target, asked)}
    return [measured(device) for device in found.values()]


def precisions(device: Target, asked: Sequence[str]) -> Sequence[Precision]:
    """Those that are asked for; if none is, the usual ones that the device has."""
    if asked:
        return [precision(name) for name in dict.fromkeys(asked)]
    usual = [PRECISIONS[name] for name in _USUAL]
    able = [scheme for scheme in usual if _why_not(device, scheme) is None]
    return able or [PRECISIONS["fp16"]]


def check(device: Target, scheme: Precision) -> None:
    """Raises Impossible for a pair that cannot be planned."""
    hint: str | None = f"see `optkit targets {device.name}`"
    reason = _why_not(device, scheme)
    if device.vendor not in _VENDORS:
        reason = f"latency is predicted for GPUs only; {device.title} is none"
        hint = "`optkit bench --target cpu` measures this machine" if device.is_cpu else None
    elif "gpu" not in scheme.runs_on:
        reason = f"{scheme} runs on ONNX Runtime's CPU kernels only"
    if reason is not None:
        raise Impossible(reason, where=device.name, hint=hint)


def _why_not(device: Target, scheme: Precision) -> str | None:
    """Why the precision cannot be planned there; None if it can. What nothing of optkit compiles
    for is planned from its peaks alone."""
    for need in scheme.needs:
        if device.support(need).answer != "unknown":
            reason = device.why_not(need, of=scheme.name)
            if reason is not None:
                return reason
    for dtype in (graph_work.multiplies_in(scheme), scheme.carrier):
        if device.peak(dtype) is None:
            return f"{scheme} multiplies in {dtype}, of which {device.title} has no known peak"
    return None
