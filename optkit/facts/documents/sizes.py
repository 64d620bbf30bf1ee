"""Fidelity at the declared sizes of the axes."""

from __future__ import annotations

from typing import Annotated, Literal

from optkit.facts.documents.record import Number, Record, Rows, said
from optkit.facts.measurement import Fidelity
from optkit.facts.plain_record import Count


class AxisSizes(Record):
    """The sizes of one axis: the declared ones, and those that the compared samples have."""

    axis: str
    declared: tuple[Count, Count]
    samples: Annotated[
        tuple[Count, Count] | None, said("The smallest and the largest; null if not known.")
    ] = None
    left_out: Annotated[
        str | None, said("Why the samples were not changed to one of the declared ends.")
    ] = None


class SizeFidelity(Record):
    """The fidelity on samples that were changed to these sizes."""

    sizes: dict[str, Count]
    fidelity: Annotated[Fidelity | None, said("Null if it failed.")] = None
    failed: Annotated[str | None, said("Why nothing was compared at these sizes.")] = None
    distinct: Annotated[
        Count | None,
        said(
            "If values were used again: how many samples of these sizes they fill once. The fewer, "
            "the less a maximum over a longer axis is known."
        ),
    ] = None


class SizeFinding(Record):
    """Sizes at which the fidelity is lower than the fidelity on the samples as they are."""

    sizes: dict[str, Count]
    what: str
    measured: Annotated[Number | None, said("SQNR there, dB; null if it was not measured.")] = None
    expected: Annotated[Number | None, said("SQNR on the samples as they are, dB.")] = None
    hint: str


class DeclaredSizes(Record):
    """The comparison at the least and the largest declared sizes of the axes, and between these
    and the samples' own sizes."""

    verdict: Literal["clean", "suspect"]
    axes: Rows[AxisSizes]
    ends: Rows[SizeFidelity]
    between: Annotated[
        Rows[SizeFidelity], said("At the geometric mean of an end and of the samples' sizes.")
    ] = ()
    findings: Rows[SizeFinding]
