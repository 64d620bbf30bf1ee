"""Rules about whole layers: those with most of the noise, and those whose values are lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optkit.craft.benchmarking.doubts import LOST_SQNR, LOW_SQNR
from optkit.facts.documents.explanation import ExplainFinding
from optkit.facts.documents.report import LayerFidelityRow
from optkit.facts.measurement import GateRow
from optkit.ground.recipe.sections import ACCURACY_LIMITS
from optkit.show.explanation.accuracy_loss import cost_of, noisy
from optkit.show.explanation.speed import to_float
from optkit.show.explanation.subject import Subject
from optkit.show.explanation.words import advice, modules, named, several
from optkit.show.report import figures


def sensitive(subject: Subject) -> Iterator[ExplainFinding]:
    """Layers with most of the noise, if accuracy is too low: it exceeds the limit of a gate, or
    there is no evaluation and the SQNR of the outputs is less than 20 dB."""
    fidelity = subject.report.layer_fidelity
    if fidelity is None or fidelity.sqnr_db is None:
        return
    poor = subject.result.accuracy is None and fidelity.sqnr_db < LOW_SQNR
    if not poor and not _fails(subject):
        return
    groups: dict[tuple[str, ...], list[LayerFidelityRow]] = {}
    for row in subject.fidelity.values():
        if row.restored is not None and _lost_db(row) is None:
            groups.setdefault(row.reads or (row.node,), []).append(row)
    for rows in groups.values():
        nodes = tuple(row.node for row in rows)
        finding = noisy(
            subject,
            "sensitive",
            nodes,
            rows,
            what=f"much of the noise at the outputs comes from {named(nodes)}{_alone(rows)}",
            why="if this runs in FP32 and nothing else changes, the SQNR of the outputs rises by "
            "the cost given",
            change=advice(f"keep it in {subject.baseline}", to_float(subject, nodes)),
        )
        if finding is not None:
            yield finding


def lost(subject: Subject) -> Iterator[ExplainFinding]:
    """Layers that lose their values: quantized alone, the output of each has less than 10 dB. They
    are one finding, whatever the outputs of the model show: these may not depend on such a layer
    in the samples, or a larger output may hide it."""
    found = [(db, row) for row in subject.fidelity.values() if (db := _lost_db(row)) is not None]
    if not found:
        return
    found.sort(key=lambda one: one[0])
    db, rows = found[0][0], [row for _, row in found]
    nodes, more = tuple(row.node for row in rows), len(rows) - 1
    others = f"; the same applies to {several(more, 'more layer')}" if more else ""
    yield ExplainFinding(
        "sensitive",
        "accuracy",
        f"the values of {nodes[0]} are lost: with only this layer quantized, its output has "
        f"{figures.decibels(db)}{others}",
        f"below {LOST_SQNR:g} dB the error has more than a tenth of the power of the values; "
        f"{_lost_by(rows[0])}",
        nodes,
        modules(nodes),
        max((cost_of(subject, [row]) for row in rows), key=lambda cost: cost.share),
        advice(f"keep it in {subject.baseline}", to_float(subject, nodes)),
        always=True,
    )


def _lost_db(row: LayerFidelityRow) -> float | None:
    """The SQNR of the layer alone, if its values are lost."""
    alone = None if row.isolated is None else row.isolated.sqnr_db
    return alone if alone is not None and alone < LOST_SQNR else None


def _lost_by(row: LayerFidelityRow) -> str:
    """What has lost the values of a layer: the codes of its weight, or of what it reads."""
    weights = row.weights.sqnr_db if row.weights is not None else None
    if weights is not None and weights < LOST_SQNR:
        return f"the codes of its weight lose them (with only these, {figures.decibels(weights)})"
    read = f" ({', '.join(row.reads)})" if row.reads else ""
    return f"the codes of what it reads{read} lose them: small values share a scale with large ones"


def weight(subject: Subject) -> float:
    """How much noise at the outputs matters beside time, in [0, 1]: 1 if a gate on accuracy is
    broken or the outputs have less than 20 dB, a tenth at 40 dB: the amplitude of the noise, by
    that at 20 dB."""
    fidelity = subject.report.layer_fidelity
    if _fails(subject) or fidelity is None or fidelity.sqnr_db is None:
        return 1.0
    return float(min(1.0, 10 ** ((LOW_SQNR - fidelity.sqnr_db) / 20)))


def _fails(subject: Subject) -> bool:
    return any(map(_is_broken, subject.report.gates))


def _is_broken(gate: GateRow) -> bool:
    """Whether a gate on accuracy failed, or its estimate exceeds the limit."""
    if gate.outcome == "fail":
        return gate.gate in ACCURACY_LIMITS
    beyond = gate.value is not None and gate.value > gate.limit
    return gate.gate == "max_drop" and beyond


def _alone(rows: Sequence[LayerFidelityRow]) -> str:
    """The error of a layer's output if only this layer is quantized; empty for several layers."""
    isolated = rows[0].isolated if len(rows) == 1 else None
    if isolated is None:
        return ""
    return f"; with only this layer quantized, its output has {figures.likeness(isolated)}"
