"""The names of precisions, compilers and devices as people write them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from optkit.facts.documents.result import Result
from optkit.facts.errors import UnknownName
from optkit.facts.measurement import GIVEN_GRAPH
from optkit.ground.devices import target as find_target
from optkit.show.report import figures


def spelled(precision: str | None) -> str:
    """`INT8`, `INT8 weight-only`, as people write it; the given graph under its own name."""
    if precision == GIVEN_GRAPH:
        return GIVEN_GRAPH
    head, _, rest = (precision or "it").partition("-")
    return " ".join(filter(None, (head.upper(), rest)))


_COMPILERS: Mapping[str, str] = MappingProxyType(
    {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX", "onnxruntime": "ONNX Runtime"}
)


def compiler(backend: str) -> str:
    """The compiler's name for people; another backend's as it is."""
    return _COMPILERS.get(backend, figures.name(backend))


def baseline_of(result: Result) -> str | None:
    """The precision of the baseline; that of the first part that has one, if there are parts."""
    sides = (result, *(result.parts or {}).values())
    return next((one.baseline.precision for one in sides if one.baseline is not None), None)


def is_given(result: Result) -> bool:
    """Whether another tool has quantized the model, so that it is compared with the given graph."""
    return result.fidelity is not None and result.fidelity.reference == GIVEN_GRAPH


def baseline_label(result: Result) -> str | None:
    """The precision of the baseline, or the given graph, which is the baseline on a CPU; None if
    there is no baseline."""
    if result.baseline is None:
        return None
    given = is_given(result) and is_cpu(result.target)
    return GIVEN_GRAPH if given else result.baseline.precision


def scored_beside(result: Result) -> str | None:
    """The given graph, if the candidate's score is compared with it and its latency with another
    graph; None: the baseline is compared in both, as always where a finished artifact is scored on
    new samples, for it holds no given graph, and then no reference has a score."""
    given = is_given(result) and result.precision != baseline_of(result) and result.references
    return GIVEN_GRAPH if given and not is_cpu(result.target) else None


def to_ship_instead(result: Result) -> str:
    """What to ship if the candidate is not: the baseline, or the given graph."""
    return GIVEN_GRAPH if is_given(result) else spelled(baseline_of(result))


def is_cpu(name: str | None) -> bool:
    try:
        return find_target(str(name)).is_cpu
    except UnknownName:
        return False


def named(result: Result) -> str:
    """The precision and the device of a build: `INT8 on NVIDIA L4`."""
    return f"{spelled(result.precision)} on {device_of(result)}"


def device_of(result: Result) -> str:
    """The name of a build's device for people."""
    sides = (result.latency, result.baseline.latency if result.baseline else None)
    machines = (one.machine for one in sides if one is not None)
    return device(result.target, next(filter(None, machines), None))


def device(name: str | None, machine: str | None = None) -> str:
    """The device's name for people; that of a stranger's document as it is. The target `cpu` is the
    CPU that measured, `machine`, which may be another one than that of this machine."""
    if name == "cpu":
        return figures.name(machine) if machine else "the CPU that built it"
    try:
        return find_target(str(name)).title
    except UnknownName:
        return figures.name(name)
