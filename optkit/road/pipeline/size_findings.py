"""The verdict on the fidelity at the declared sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from optkit.facts.documents.sizes import AxisSizes, DeclaredSizes, SizeFidelity, SizeFinding
from optkit.facts.measurement import Fidelity, OutputFidelity
from optkit.road.pipeline.declared_sizes import free_axes, told
from optkit.road.pipeline.job import Build
from optkit.road.steps.compare_sizes import ComparedSizes
from optkit.road.steps.resize import ENDS, POINTS, Point, ResizedSamples

_LOSS_DB = 3.0
"""What may be lost at other sizes: the noise is twice as large."""
_FINE_DB = 50.0
"""No loss matters from here on: the error is 0.3 % of the outputs."""


def declared_sizes(build: Build) -> DeclaredSizes | None:
    """The figures at points of the declared sizes; None if no size is free, or none was tried."""
    usual = build.candidate_fidelity
    if not build.resized or usual is None or usual.fidelity is None:
        return None
    findings = tuple(_findings(build, usual.fidelity))
    return DeclaredSizes(
        verdict="suspect" if findings else "clean",
        axes=tuple(_axes(build)),
        ends=tuple(_figures(build, ENDS)),
        between=tuple(_figures(build, [point for point in POINTS if point not in ENDS])),
        findings=findings,
    )


def _figures(build: Build, points: Sequence[Point]) -> Iterator[SizeFidelity]:
    compared = build.at_sizes or ComparedSizes()
    for point in points:
        found, failed = compared.fidelity.get(point), compared.failed.get(point)
        if found is not None or failed is not None:
            made = build.resized[point]
            yield SizeFidelity(
                sizes=dict(made.sizes), fidelity=found, failed=failed, distinct=made.distinct
            )


def _axes(build: Build) -> Iterator[AxisSizes]:
    for name, axis in free_axes(build).items():
        ends = [build.resized[end] for end in ENDS]
        reached = next((end.reached[name] for end in ends if name in end.reached), None)
        reasons = dict.fromkeys(end.told[name] for end in ends if name in end.told)
        yield AxisSizes(
            axis=name,
            declared=(axis.min, axis.max),
            samples=reached,
            left_out="; ".join(reasons) or None,
        )


def _findings(build: Build, usual: Fidelity) -> Iterator[SizeFinding]:
    if (compared := build.at_sizes) is None:
        return
    for point, resized in build.resized.items():
        at, hint = told(resized), _hint(point, resized)
        if point in compared.broken:
            what = f"the candidate gives no numbers at {at}: {compared.failed[point]}"
            yield SizeFinding(
                sizes=dict(resized.sizes), what=what, expected=usual.sqnr_db, hint=hint
            )
        found = compared.fidelity.get(point)
        limit = build.job.recipe.gates.of(build.job.target.name).min_sqnr
        if found is not None and (lost := _lost(usual, found, limit)) is not None:
            before, after = lost
            where = f" of output {after.output!r}" if len(found.outputs) > 1 else ""
            where += f", {after.part}" if after.part else ""
            what = (
                f"the SQNR{where} is {_db(after)} at {at}, and {_db(before)} on the samples as "
                "they are"
            )
            if limit is not None and after.sqnr_db is not None and after.sqnr_db < limit:
                what += f"; the gate min_sqnr is {limit:g} dB"
            yield SizeFinding(
                sizes=dict(resized.sizes),
                what=what,
                measured=after.sqnr_db,
                expected=before.sqnr_db,
                hint=hint,
            )


def _lost(
    usual: Fidelity, found: Fidelity, limit: float | None
) -> tuple[OutputFidelity, OutputFidelity] | None:
    """The output that loses most beside the usual samples, there and here; None if none loses too
    much, and all keep the limit."""
    before = {(one.output, one.part): one for one in usual.outputs or (usual.worst,)}
    lost = []
    for after in found.outputs or (found.worst,):
        known = before.get((after.output, after.part))
        if known is None or after.sqnr_db is None or known.silent or after.silent:
            continue
        loss = (inf if known.sqnr_db is None else known.sqnr_db) - after.sqnr_db
        below = limit is not None and after.sqnr_db < limit
        if below or (loss > _LOSS_DB and after.sqnr_db < _FINE_DB):
            lost.append((loss, known, after))
    return max(lost, key=lambda one: one[0])[1:] if lost else None


def _db(one: OutputFidelity) -> str:
    return "bit-equal" if one.sqnr_db is None else f"{one.sqnr_db:.1f} dB"


def _hint(point: Point, resized: ResizedSamples) -> str:
    axes = " and ".join(resized.sizes)
    other = "larger minimum" if point in ("least", "shorter") else "smaller maximum"
    return f"give calibration and evaluation samples of this size, or declare a {other} for {axes}"
