"""Rules that say why accuracy fell, from the layers' fidelity.

The cost of a fault is what the outputs gain where the layers that read the value are FP32 again, in
dB of SQNR; in points, the share of the drop that equals their share of the noise:

    share = 1 - 10^(-dB / 10)        points = drop · share
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose, log2
from typing import Self

from optkit.documents.explanation import Rule
from optkit.documents.report import (
    Fault,
    GateOutcome,
    LayerFidelityRow,
    NodeDecision,
    OutputFidelity,
    PairFidelity,
)
from optkit.evidence import Evidence
from optkit.explanation.finding import Change, Cost, Finding
from optkit.explanation.layer_times import LEAST, left_behind
from optkit.explanation.speed import to_float
from optkit.explanation.subject import Subject
from optkit.explanation.words import modules, named, several
from optkit.recipe.schema import ACCURACY_LIMITS
from optkit.report import figures

LEAST_DB = 0.5
"""What restoring a layer has to win: an eighth of the noise. Less is in the spread over samples."""

_ONE_BIT_DB = 6.02
_UNUSED = 0.25  # of a range of codes that nothing reaches beyond
_SATURATED = 0.02  # of a weight's codes
_HALF_DB = 3.01  # half of the noise
_NEARLY = 0.9  # of what all pairs with a fault cost: then one is told of alone
_SAME = 0.02  # two ranges, of which one is told in codes
_POOR_DB = 20.0  # at the outputs: a tenth of the signal's amplitude


def clipped(subject: Subject) -> Iterator[Finding]:
    """Activations' ranges that are too small: most of a pair's noise is what lies beyond it, see
    `benchmarking.layers.Clipping`. Where all ranges clip, each alone costs little beside the
    others, so they are one finding."""
    if (pairs := _Pairs.of(subject, "clipped")) is None:
        return
    worst = pairs.rows[0]
    yield pairs.finding(
        what=f"{worst.share:.2%} of {worst.value} are clipped: {_ranges(worst)}"
        + _others(pairs, "clipped too"),
        why=f"{worst.noise:.0%} of the noise of this pair ({worst.sqnr_db:.1f} dB) is "
        "clipping, not rounding",
        change=_wider(subject, pairs),
    )


def coarse(subject: Subject) -> Iterator[Finding]:
    """Activations' ranges that are many times what the values take: codes are left unused, and the
    others are coarse."""
    if (pairs := _Pairs.of(subject, "coarse")) is None:
        return
    worst = pairs.rows[0]
    times = max(-worst.low, worst.high) / max(map(abs, worst.seen))
    yield pairs.finding(
        what=f"the codes of {worst.value} are {times:.1f} times too coarse: "
        f"{_ranges(worst)}{_others(pairs, 'too coarse too')}",
        why=f"{log2(times):.1f} bits of each code are not used ({worst.sqnr_db:.1f} dB)",
        change=_narrower(subject, pairs),
    )


def duplicated(subject: Subject) -> Iterator[Finding]:
    """A pair that quantizes what a pair gives: it rounds twice."""
    if (pairs := _Pairs.of(subject, "duplicated")) is None:
        return
    worst = pairs.rows[0]
    yield pairs.finding(
        what=f"{worst.value} is quantized twice: {worst.pair} reads what a pair gives"
        + _others(pairs, "quantized twice too"),
        why="other scales round again, and a compiler cannot cancel pairs that are not equal",
        change=Change(f"take the second pair out of the graph ({worst.pair})"),
    )


def unread(subject: Subject) -> Iterator[Finding]:
    """A pair whose codes no quantized product reads, with half of the noise or more: it costs
    accuracy, and no product is faster for it. (Backends place a few such on purpose, behind a
    product that writes codes; they cost little.)"""
    if (pairs := _Pairs.of(subject, "unread", _HALF_DB)) is None:
        return
    worst = pairs.rows[0]
    added = any(subject.op(node) == "Add" for node in worst.readers)
    key = ("quantization", "placement", "residual_adds")
    change = Change(f"take the pair out of the graph ({worst.pair})")
    if added and subject.recipe["quantization"]["placement"].get("residual_adds"):
        change = Change("leave the shortcut in float", {key: False})
    yield pairs.finding(
        what=f"{worst.value} is rounded to codes that no quantized product reads, but "
        f"{named(worst.readers)}{_others(pairs, 'rounded for nobody too')}",
        why=f"the pair's own noise is {worst.sqnr_db:.1f} dB, and no kernel is faster for it"
        if worst.sqnr_db is not None else "no kernel is faster for it",
        change=change,
    )  # fmt: skip


def weight_axis(subject: Subject) -> Iterator[Finding]:
    """A weight whose scales do not follow its output channels.

    A scale per output channel is multiplied once, behind the sum; one along the summed axis cannot
    leave it, so no integer kernel takes it. One for the whole tensor follows its largest channel:
    found where the weight's noise is a bit (6.02 dB) above what scales per channel would leave.
    """
    for node, row in subject.likeness.items():
        own = row.weights.sqnr_db if row.weights else None
        best = row.by_channel_db
        worse = own is not None and best is not None and own < best - _ONE_BIT_DB
        if row.scales not in ("summed", "tensor") or not (row.scales == "summed" or worse):
            continue
        told, why = _AXES[row.scales]
        found = _noisy(
            subject, "weight_axis", (node,), [row],
            what=f"the weight of {named([node])} has {told}{_by_channel(own, best)}",
            why=why, change=_along_channels(subject, row), least=0.0,
            ms=0.0 if subject.has_landed(node) else left_behind(subject, node),
        )  # fmt: skip
        if found is not None:
            yield found


def weight_scale(subject: Subject) -> Iterator[Finding]:
    """A weight with a scale for each output channel that does not fit it: so coarse that two bits
    of every code are unused, or so small that many codes saturate (with a scale from its largest
    weight a channel has few such). Its noise is a bit (6.02 dB) above that of scales from the
    channels' own maxima. (Noise alone would not tell: rounding that follows the activations leaves
    a weight farther from its own.)"""
    for node, row in subject.likeness.items():
        own = row.weights.sqnr_db if row.weights else None
        best = row.by_channel_db
        if row.scales != "channel" or own is None or best is None or own >= best - _ONE_BIT_DB:
            continue
        codes = row.codes
        if codes is None or (codes.reach > _UNUSED and codes.saturated < _SATURATED):
            continue
        told = f"its codes reach {codes.reach:.0%} of their range"
        if codes.saturated >= _SATURATED:
            told = f"{codes.saturated:.0%} of its codes stand at the end of their range"
        found = _noisy(
            subject, "weight_scale", (node,), [row],
            what=f"the scales of {named([node])}'s weight do not fit it: {told}"
            f"{_by_channel(own, best)}",
            why="a scale that is too large leaves codes unused, a small one saturates them",
            change=Change(f"quantize it anew; until then leave it in {subject.baseline}",
                          to_float(subject, [node])),
        )  # fmt: skip
        if found is not None:
            yield found


_AXES = {
    "summed": ("one scale per input, along the axis that is summed",
               "no integer kernel multiplies by scales inside the sum"),
    "tensor": ("one scale for all channels", "the largest channel sets the step of all others"),
}  # fmt: skip


def _by_channel(own: float | None, best: float | None) -> str:
    if own is None or best is None:
        return ""
    return f", which leaves it {own:.1f} dB; per output channel it would have {best:.1f} dB"


def _along_channels(subject: Subject, row: LayerFidelityRow) -> Change:
    placed = subject.recipe["quantization"]["placement"]["tensor_ops"] or ()
    if row.scales == "tensor" and row.op in placed:
        key = ("quantization", "placement", "tensor_ops")
        others = [op for op in placed if op != row.op]
        return Change("let its weight have one scale per output channel", {key: others})
    text = f"leave it in {subject.baseline} until it is quantized along its output channels"
    return Change(text, to_float(subject, [row.node]))


def sensitive(subject: Subject) -> Iterator[Finding]:
    """Layers with most of the noise, where accuracy is not what was asked for: a gate on it is
    beyond its limit, or nothing judges and the outputs' SQNR is under 20 dB."""
    fidelity = subject.report.layer_fidelity
    if fidelity is None or fidelity.sqnr_db is None:
        return
    poor = subject.result.accuracy is None and fidelity.sqnr_db < _POOR_DB
    if not poor and not any(map(_is_broken, subject.report.gates)):
        return
    groups: dict[tuple[str, ...], list[LayerFidelityRow]] = {}
    for row in subject.likeness.values():
        if row.restored is not None:
            groups.setdefault(row.reads or (row.node,), []).append(row)
    for rows in groups.values():
        nodes = tuple(row.node for row in rows)
        found = _noisy(
            subject, "sensitive", nodes, rows,
            what=f"much of the noise at the outputs comes from {named(nodes)}{_alone(rows)}",
            why="in FP32 again, with nothing else changed, the outputs come that much closer",
            change=Change(f"leave it in {subject.baseline}", to_float(subject, nodes)),
        )  # fmt: skip
        if found is not None:
            yield found


def _is_broken(gate: GateOutcome) -> bool:
    """Whether a gate on accuracy is beyond its limit, certainly or by its estimate."""
    if gate.outcome == "fail":
        return gate.gate in ACCURACY_LIMITS
    beyond = gate.value is not None and gate.value > gate.limit
    return gate.gate == "max_drop" and beyond


def _noisy(
    subject: Subject, rule: Rule, nodes: tuple[str, ...], rows: Sequence[LayerFidelityRow], *,
    what: str, why: str, change: Change, ms: float = 0.0, least: float = LEAST_DB,
) -> Finding | None:  # fmt: skip
    """The finding with its cost; None where restoring the layers wins too little."""
    cost = _cost(subject, rows)
    if subject.share(ms) >= LEAST:
        cost = replace(cost, ms=ms, evidence=Evidence.PREDICTED)
        if subject.share(ms) > cost.share:
            cost = replace(cost, share=subject.share(ms), of="layers")
    if cost.db is not None and cost.db < least and cost.ms is None:
        return None
    return Finding(rule, "accuracy", what, why, nodes, modules(nodes), cost, change)


def _alone(rows: Sequence[LayerFidelityRow]) -> str:
    """What one layer alone does to the value it leaves."""
    known = rows[0].isolated if len(rows) == 1 else None
    return "" if known is None else f"; this layer alone leaves {figures.likeness(known)}"


def _cost(subject: Subject, rows: Sequence[LayerFidelityRow]) -> Cost:
    fidelity = subject.report.layer_fidelity
    whole = fidelity.sqnr_db if fidelity else None
    restored = next((row.restored for row in rows if row.restored is not None), None)
    if restored is None or whole is None:
        return Cost(0.0, "noise", Evidence.SIMULATED)
    if restored.sqnr_db is None:  # nothing else is noisy
        share, db = 1.0, None
    else:
        db = max(restored.sqnr_db - whole, 0.0)
        share = 1 - 10 ** (-db / 10)
    return _of_noise(subject, share, db)


def _of_noise(subject: Subject, share: float, db: float | None) -> Cost:
    """What this share of the noise at the outputs costs, in points too where there is a drop."""
    drop = subject.result.drop
    lost = drop.value * share if drop is not None and drop.value > 0 else None
    known = Evidence.SIMULATED if lost is None else Evidence.PREDICTED  # that points follow noise
    return Cost(share, "noise", known, db=db, points=lost)


@dataclass(frozen=True)
class _Pairs:
    """The pairs with one fault that cost most: the one that costs as much as all of them, else all.
    `db`: what the outputs gain without them; None: all noise is theirs."""

    subject: Subject
    fault: Fault
    rows: Sequence[PairFidelity]
    db: float | None

    @classmethod
    def of(cls, subject: Subject, fault: Fault, least: float = LEAST_DB) -> Self | None:
        """None where there are none, or they cost too little."""
        fidelity = subject.report.layer_fidelity
        if fidelity is None or fidelity.sqnr_db is None:
            return None
        whole = fidelity.sqnr_db
        group = next((one for one in fidelity.faults if one.fault == fault), None)
        if group is None:
            return None
        gain = _gain(group.without, whole)
        rows = [row for row in fidelity.values if row.pair in group.pairs]
        rows.sort(key=lambda row: -_gain(row.without, whole))
        if gain < least:
            return None
        if _gain(rows[0].without, whole) >= _NEARLY * gain:
            rows, gain = rows[:1], _gain(rows[0].without, whole)
        return cls(subject, fault, rows, None if gain == inf else gain)

    @property
    def readers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node for row in self.rows for node in row.readers))

    def finding(self, *, what: str, why: str, change: Change) -> Finding:
        share = 1.0 if self.db is None else 1 - 10 ** (-self.db / 10)
        nodes = self.readers
        cost = _of_noise(self.subject, share, self.db)
        return Finding(self.fault, "accuracy", what, why, nodes, modules(nodes), cost, change)


def _gain(without: OutputFidelity | None, whole: float) -> float:
    if without is None:
        return 0.0
    return inf if without.sqnr_db is None else max(without.sqnr_db - whole, 0.0)


def _ranges(row: PairFidelity) -> str:
    least, most = row.seen
    codes = f"its codes from {row.low:.3g} to {row.high:.3g}"
    return f"it reaches from {least:.3g} to {most:.3g}, {codes}"


def _others(pairs: _Pairs, what: str) -> str:
    more = len(pairs.rows) - 1
    return f"; {several(more, 'more value')} {'is' if more == 1 else 'are'} {what}" if more else ""


def _decided(subject: Subject, pairs: _Pairs) -> list[NodeDecision]:
    """What the recipe decided on these values."""
    values = {row.value for row in pairs.rows}
    rows = subject.report.quantization
    return [row for row in rows if row.activation in values and row.high is not None]


def _foreign(subject: Subject, pairs: _Pairs) -> Change | None:
    """Where a pair is not what the recipe decided, no setting made it; None: all are."""
    decided = {row.activation: row for row in _decided(subject, pairs)}
    for row in pairs.rows:
        own = decided.get(row.value)
        if own is None or own.low is None or own.high is None:
            continue
        if not isclose(max(-own.low, own.high), max(-row.low, row.high), rel_tol=_SAME):
            return Change(
                f"build it again: its recipe gives {row.value} the range {own.low:.3g} to "
                f"{own.high:.3g}, and the graph has another"
            )
    return None if decided else Change("give the pair the range of its values")


def _wider(subject: Subject, pairs: _Pairs) -> Change:
    """Ranges that hold all values: by another method where this one leaves some out, by more
    samples where calibration saw less."""
    foreign, calibration = _foreign(subject, pairs), subject.recipe["calibration"]
    if foreign is not None:
        return foreign
    if calibration is not None and {row.method for row in _decided(subject, pairs)} != {"minmax"}:
        key = ("calibration", "method")
        return Change("a range that holds all that calibration saw", {key: "minmax"})
    text = "calibrate on more samples, like those that it will meet"
    if calibration is None:
        return Change(text)
    return Change(text, {("calibration", "samples"): 4 * calibration["samples"]})


def _narrower(subject: Subject, pairs: _Pairs) -> Change:
    """Ranges without the extremes that calibration saw and these samples do not have. A method that
    cuts ranges leaves weights that were rounded for those extremes, so it is no remedy."""
    text = "take the samples with extremes out of the calibration data"
    return _foreign(subject, pairs) or Change(f"{text}; no setting of the recipe does that")
