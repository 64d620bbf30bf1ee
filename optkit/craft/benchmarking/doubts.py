"""Doubts about outputs that no gate has judged: far from those of the reference, lost, or not
finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal, Protocol

from optkit.facts.measurement import Fidelity

UNJUDGED = "no task says whether that matters"  # in the reason of a low SQNR
UNREAD = "the task may not read it"  # in the reason of a lost output beside a task

Accuracy = Literal["unjudged", "kept", "broken"]
"""No task judges it; its limits hold, or may hold; it breaks a limit, so that nothing is open."""

_OPEN: Mapping[Accuracy, str] = MappingProxyType(
    {"unjudged": f", and {UNJUDGED}", "kept": f", and {UNREAD}", "broken": ""}
)

LOW_SQNR = 20.0
"""dB; the amplitude of the error is then a tenth of that of the outputs (10^(-20/20)). A sentence
encoder kept 86 % of the nearest neighbours at 17.5 dB, 92 % at 24 dB, 99 % at 38 dB. Without a
task, a lower SQNR is reported."""

LOST_SQNR = 10.0
"""dB; the power of the error is then a tenth of that of the output. Where a model has several
outputs, or parts of one with units of their own, a task may judge another one than the worst."""

FINE_DB = 35.0
"""Of a Q/DQ pair: eight bits of a Gaussian have this SQNR without clipping. Above, it has no
fault."""

COARSE = 4.0
"""How many times the largest magnitude of the values a range is that leaves two bits unused."""


class _Compared(Protocol):
    @property
    def reference(self) -> str: ...

    @property
    def samples(self) -> int: ...

    @property
    def not_finite(self) -> int | None: ...


def not_finite(fidelity: _Compared) -> str | None:
    """The samples with values that are not finite; None if there are none."""
    if fidelity.not_finite is None:
        return None
    return (
        f"it returns NaN or infinities for {fidelity.not_finite:,} of {fidelity.samples:,} "
        f"samples, where {fidelity.reference} is finite"
    )


def doubts(fidelity: Fidelity, accuracy: Accuracy, *, limited: bool) -> Iterator[str]:
    """What speaks against the outputs beside the gates. `accuracy`: what a task found; `limited`:
    by `min_sqnr`."""
    open_question = _OPEN[accuracy]
    if (odd := not_finite(fidelity)) is not None:
        yield (
            f"{odd}{open_question}; look for values above 65504 if the "
            "graph has FP16, and for a division by a value that rounds to 0"
        )
    constant = next((row for row in fidelity.outputs if row.constant), None)
    if constant is not None:
        yield (
            f"{constant.called} has become constant (99 % of its variance in "
            f"{fidelity.reference} is lost){open_question}; `optkit explain` names the layers that "
            "cost it"
        )
    worst = fidelity.worst.sqnr_db
    if limited or worst is None or (constant is not None and worst == constant.sqnr_db):
        return
    if (low := (_low if accuracy == "unjudged" else _lost)(fidelity, worst)) is not None:
        yield low


def _low(fidelity: Fidelity, worst: float) -> str | None:
    """Of a low SQNR that no task judges."""
    if worst >= LOW_SQNR:
        return None
    of, values = (f" of {fidelity.where}", "values") if fidelity.where else ("", "outputs")
    return (
        f"fidelity to {fidelity.reference} is {worst:.1f} dB (SQNR{of}): the error is "
        f"{10 ** (-worst / 20):.0%} of the {values} (at most {fidelity.worst.max_abs_error:.3g}), "
        f"and {UNJUDGED}; below {LOW_SQNR:g} dB it usually does (`optkit explain` names the layers "
        "that cost it)"
    )


def _lost(fidelity: Fidelity, worst: float) -> str | None:
    """Of a lost output beside a task, which judges the others."""
    if not fidelity.where or worst >= LOST_SQNR:
        return None
    return (
        f"{fidelity.where} has an SQNR of {worst:.1f} dB to {fidelity.reference}, and {UNREAD}; "
        "gates.min_sqnr sets a limit for it"
    )
