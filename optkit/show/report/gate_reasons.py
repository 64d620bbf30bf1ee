"""The reasons of gates: the figure that each is about, its evidence, and its words for a reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

from optkit.craft.benchmarking.doubts import UNJUDGED, UNREAD
from optkit.craft.benchmarking.gates import NO_TASK
from optkit.facts.documents.result import Result
from optkit.facts.evidence import Evidence
from optkit.show.report import figures


class _HasEvidence(Protocol):
    @property
    def evidence(self) -> Evidence: ...


_Figure = Literal["drop", "accuracy", "fidelity", "latency", "speedup", "size", "memory"]


@dataclass(frozen=True)
class _Limit:
    """What a gate limits, and the figure that it judges."""

    what: str
    figure: _Figure


_LIMITS: Mapping[str, _Limit] = MappingProxyType(
    {
        "max_drop": _Limit("drop", "drop"),
        "max_slice_drop": _Limit("drop in a slice", "drop"),
        "min_slice_value": _Limit("accuracy in a slice", "accuracy"),
        "max_slice_value": _Limit("accuracy in a slice", "accuracy"),
        "min_value": _Limit("accuracy", "accuracy"),
        "max_value": _Limit("accuracy", "accuracy"),
        "min_sqnr": _Limit("SQNR", "fidelity"),
        "max_latency_ms": _Limit("latency", "latency"),
        "min_speedup": _Limit("speedup", "speedup"),
        "min_throughput": _Limit("throughput", "latency"),
        "max_bytes": _Limit("size", "size"),
        "max_memory_bytes": _Limit("memory of a run", "memory"),
    }
)

_RELATIVE = ("drop", "fidelity")  # compare with the baseline, which therefore keeps the limit

BROKEN = "breaks the limit"  # in the reason of a gate that fails


def all_relative(reasons: Sequence[str]) -> bool:
    """Whether the baseline keeps the limits of all reasons: it loses no accuracy to itself."""
    return bool(reasons) and all(
        reason == NO_TASK or judged(reason) in _RELATIVE or is_doubt(reason) for reason in reasons
    )


def is_doubt(reason: str) -> bool:
    """Whether it is about outputs that may be broken and that no task has judged."""
    return UNJUDGED in reason or UNREAD in reason


def judged(reason: str) -> _Figure | None:
    """The figure that the gate of a reason judges; None for a reason of no gate."""
    limit = _LIMITS.get(reason.partition(":")[0])
    return None if limit is None else limit.figure


def evidence(result: Result, reasons: Iterable[str]) -> list[Evidence | None]:
    """The evidence of the figures that these gates judge, as far as there are figures."""
    every: dict[_Figure, _HasEvidence | None] = {
        "drop": result.drop,
        "accuracy": result.accuracy,
        "fidelity": result.fidelity,
        "latency": result.latency,
        "speedup": result.speedup,
        "size": result.size,
    }
    known: list[Evidence | None] = []
    for reason in reasons:
        about = judged(reason)
        if about == "memory":  # only a measured memory keeps or breaks a limit
            known.append(Evidence.MEASURED if BROKEN in reason else None)
        elif about is not None and NO_TASK not in reason:
            figure = every[about]
            known.append(None if figure is None else figure.evidence)
    return known


def told(result: Result, reason: str) -> str:
    """A reason, with what its gate limits in place of the gate's name."""
    gate, colon, rest = reason.partition(": ")
    if not colon or gate not in _LIMITS:
        return reason
    if rest == NO_TASK:
        return rest
    what = _LIMITS[gate].what
    if gate == "max_drop" and result.accuracy is not None:
        what += f" of {figures.name(result.accuracy.metric)}"
    return f"{what} {rest}" if rest[:1] in "-0123456789" else f"{what}: {rest}"
