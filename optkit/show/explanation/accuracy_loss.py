"""Rules that say why accuracy fell, from the layers' fidelity.

The cost of a fault is the SQNR in dB that the outputs gain if the layers that read the value run in
FP32; in points, the share of the drop that equals their share of the noise:

    share = 1 - 10^(-dB / 10)        points = drop · share
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose, log2
from typing import Self

from optkit.facts.documents.explanation import ExplainFinding, FindingCost, RecipeChange, Rule
from optkit.facts.documents.report import (
    GIVEN,
    Fault,
    LayerFidelityRow,
    NodeDecision,
    OutputFidelity,
    PairFidelity,
)
from optkit.facts.evidence import Evidence
from optkit.show.explanation.quantization_gains import LEAST, left_behind
from optkit.show.explanation.speed import to_float
from optkit.show.explanation.subject import Subject
from optkit.show.explanation.words import advice, line, modules, named, several

LEAST_DB = 0.5
"""The least gain of a finding, in dB: about an eighth of the noise. A smaller gain is within the
spread over samples."""

ONE_BIT_DB = 6.02
_UNUSED = 0.25  # largest code over the end of the range: two bits are unused
SATURATED = 0.02  # share of a weight's codes
_HALF_DB = 3.01  # half of the noise
_NEARLY = 0.9  # share of the cost of all pairs with a fault, from which one pair is named alone
_SAME = 0.02  # relative difference of equal ranges, of which one was rounded to codes
_CHANCE = 4.0  # times the share beyond the extremes that chance explains


def clipped(subject: Subject) -> Iterator[ExplainFinding]:
    """Activation ranges that are too small: clipping makes most of the noise of their pairs (see
    `benchmarking.layers.fault_of`). If all ranges clip, changing one of them gains almost nothing,
    so all of them are one finding."""
    pairs = Pairs.of(subject, "clipped")
    if pairs is None or subject.other_data is not None:  # `other_calibration_data` reports it
        return
    worst = pairs.rows[0]
    yield pairs.finding(
        what=f"{worst.share:.2%} of the elements of {worst.value} are clipped: {_ranges(worst)}"
        + _others(pairs),
        why=f"clipping makes {worst.noise:.0%} of the noise of this Q/DQ pair (SQNR "
        f"{worst.sqnr_db:.1f} dB), and rounding the rest",
        change=_wider(subject, pairs),
    )


def coarse(subject: Subject) -> Iterator[ExplainFinding]:
    """Activation ranges that are many times as wide as the values: codes remain unused, and the
    steps between the others are too large."""
    pairs = Pairs.of(subject, "coarse")
    if pairs is None or subject.other_data is not None:
        return
    worst = pairs.rows[0]
    times = max(-worst.low, worst.high) / max(map(abs, worst.seen))
    yield pairs.finding(
        what=f"the scale of {worst.value} is {times:.1f} times too large: "
        f"{_ranges(worst)}{_others(pairs)}",
        why=f"{log2(times):.1f} bits of each code are unused (SQNR {worst.sqnr_db:.1f} dB)",
        change=_narrower(subject, pairs),
    )


def duplicated(subject: Subject) -> Iterator[ExplainFinding]:
    """A Q/DQ pair that quantizes the output of another pair, which rounds twice."""
    if (pairs := Pairs.of(subject, "duplicated")) is None:
        return
    worst = pairs.rows[0]
    yield pairs.finding(
        what=f"{worst.value} is quantized twice: the Q/DQ pair {worst.pair} reads the output of "
        f"another pair{_others(pairs)}",
        why="the second pair has another scale and rounds again; a compiler can merge equal pairs "
        "only",
        change=advice(f"remove the second pair from the graph ({worst.pair})"),
    )


def unread(subject: Subject) -> Iterator[ExplainFinding]:
    """A Q/DQ pair whose codes no quantized product reads, with half of the noise or more: it costs
    accuracy and makes no product faster. Or optkit placed it behind a product whose integer kernel
    writes codes: then it is a limit of this kernel."""
    if (pairs := Pairs.of(subject, "unread", _HALF_DB)) is None:
        return
    worst, makers = pairs.rows[0], _makers(subject, pairs)
    what = (
        f"{worst.value} is quantized, but no quantized product reads its codes, only "
        f"{named(worst.readers)}{_others(pairs)}"
    )
    noise = f" (SQNR {worst.sqnr_db:.1f} dB)" if worst.sqnr_db is not None else ""
    if makers:
        setting = line(*next(iter(to_float(subject, makers[:1]).items())))
        text = f"if the accuracy is too low, keep it in {subject.baseline} (`{setting}`)"
        change = advice(f"{text}; its kernel then writes floats, and takes longer")
        why = f"the integer kernel of {named(makers)} can write only codes{noise}"
        yield replace(pairs.finding(what=what, why=why, change=change), limit=True)
        return
    added = any(subject.op(node) == "Add" for node in worst.readers)
    key = ("quantization", "placement", "residual_adds")
    change = advice(f"remove the pair from the graph ({worst.pair})")
    if added and subject.recipe.quantization.placement.residual_adds:
        change = advice("keep the shortcut in float", {key: False})
    why = f"the pair adds noise{noise} and makes no kernel faster"
    yield pairs.finding(what=what, why=why, change=change)


def _makers(subject: Subject, pairs: Pairs) -> tuple[str, ...]:
    """The products whose results the pairs quantize, if integer kernels write all of them."""
    reads = [subject.nodes[row.pair].reads for row in pairs.rows if row.pair in subject.nodes]
    makers = tuple(dict.fromkeys(maker for one in reads for maker in one))
    whole = len(reads) == len(pairs.rows) and all(map(subject.has_landed, makers))
    return makers if whole else ()


def weight_axis(subject: Subject) -> Iterator[ExplainFinding]:
    """A weight whose scales do not follow its output channels.

    A kernel multiplies by a scale per output channel once, after the sum. A scale along the summed
    axis changes inside the sum, so no integer kernel supports it. A single scale for the tensor
    follows its largest channel: the rule reports it if the SQNR of the weight is one bit (6.02 dB)
    below that with one scale per channel.
    """
    for node, row in subject.fidelity.items():
        sqnr_db = row.weights.sqnr_db if row.weights else None
        best_db = row.by_channel_db
        worse = sqnr_db is not None and best_db is not None and sqnr_db < best_db - ONE_BIT_DB
        if row.scales not in ("summed", "tensor") or not (row.scales == "summed" or worse):
            continue
        scales, why = _AXES[row.scales]
        finding = noisy(
            subject,
            "weight_axis",
            (node,),
            [row],
            what=f"the weight of {named([node])} has {scales}{_by_channel(sqnr_db, best_db)}",
            why=why,
            change=_along_channels(subject, row),
            least=0.0,
            ms=0.0 if subject.has_landed(node) else left_behind(subject, node),
        )
        if finding is not None:
            yield finding


def weight_scale(subject: Subject) -> Iterator[ExplainFinding]:
    """A weight whose scales per output channel do not fit it.

    They are so large that two bits of every code are unused, or so small that many codes saturate
    (with scales from the maxima of the channels few do), and the SQNR of the weight is one bit
    (6.02 dB) below that with scales from these maxima. SQNR alone is not enough: rounding that
    minimizes the error of the activations leaves a larger error in the weight itself.
    """
    for node, row in subject.fidelity.items():
        sqnr_db = row.weights.sqnr_db if row.weights else None
        best_db = row.by_channel_db
        if row.scales != "channel" or sqnr_db is None or best_db is None:
            continue
        codes = row.codes
        if sqnr_db >= best_db - ONE_BIT_DB or codes is None:
            continue
        if codes.reach > _UNUSED and codes.saturated < SATURATED:
            continue
        symptom = f"its codes use only {codes.reach:.0%} of their range"
        if codes.saturated >= SATURATED:
            symptom = f"{codes.saturated:.0%} of its codes are saturated"
        finding = noisy(
            subject,
            "weight_scale",
            (node,),
            [row],
            what=f"the scales of the weight of {named([node])} do not fit it: {symptom}"
            f"{_by_channel(sqnr_db, best_db)}",
            why="scales that are too large leave codes unused; scales that are too small saturate "
            "them",
            change=advice(
                f"quantize it again; until then keep it in {subject.baseline}",
                to_float(subject, [node]),
            ),
        )
        if finding is not None:
            yield finding


_AXES = {
    "summed": (
        "one scale per input channel, along the summed axis",
        "no integer kernel can apply scales inside the sum",
    ),
    "tensor": (
        "one scale for all channels",
        "the largest channel determines the scale of all others",
    ),
}


def _by_channel(sqnr_db: float | None, best_db: float | None) -> str:
    if sqnr_db is None or best_db is None:
        return ""
    return f"; its SQNR is {sqnr_db:.1f} dB, with one scale per output channel {best_db:.1f} dB"


def _along_channels(subject: Subject, row: LayerFidelityRow) -> RecipeChange:
    placed = subject.recipe.quantization.placement.tensor_ops or ()
    if row.scales == "tensor" and row.op in placed:
        key = ("quantization", "placement", "tensor_ops")
        others = [op for op in placed if op != row.op]
        return advice("give its weight one scale per output channel", {key: others})
    text = f"keep it in {subject.baseline} until its weight has one scale per output channel"
    return advice(text, to_float(subject, [row.node]))


def noisy(
    subject: Subject,
    rule: Rule,
    nodes: tuple[str, ...],
    rows: Sequence[LayerFidelityRow],
    *,
    what: str,
    why: str,
    change: RecipeChange,
    ms: float = 0.0,
    least: float = LEAST_DB,
) -> ExplainFinding | None:
    """The finding with its cost; None if the layers in FP32 would gain too little."""
    cost = cost_of(subject, rows)
    if subject.share(ms) >= LEAST:
        cost = replace(cost, ms=ms, evidence=Evidence.PREDICTED)
        if subject.share(ms) > cost.share:
            cost = replace(cost, share=subject.share(ms), of="layers")
    if cost.db is not None and cost.db < least and cost.ms is None:
        return None
    return ExplainFinding(rule, "accuracy", what, why, nodes, modules(nodes), cost, change)


def cost_of(subject: Subject, rows: Sequence[LayerFidelityRow]) -> FindingCost:
    """What the outputs gain with these layers in FP32, of which one row says it."""
    fidelity = subject.report.layer_fidelity
    whole = fidelity.sqnr_db if fidelity else None
    restored = next((row.restored for row in rows if row.restored is not None), None)
    if restored is None or whole is None:
        return FindingCost(0.0, "noise", Evidence.SIMULATED)
    if restored.sqnr_db is None:  # nothing else is noisy
        share, db = 1.0, None
    else:
        db = max(restored.sqnr_db - whole, 0.0)
        share = 1 - 10 ** (-db / 10)
    return _of_noise(subject, share, db)


def _of_noise(subject: Subject, share: float, db: float | None) -> FindingCost:
    """The cost of this share of the noise at the outputs; also in points, if there is a drop."""
    drop = subject.result.drop
    lost = drop.value * share if drop is not None and drop.value > 0 else None
    # that a drop is proportional to the noise is a prediction
    known = Evidence.SIMULATED if lost is None else Evidence.PREDICTED
    return FindingCost(share, "noise", known, db=db, points=lost)


@dataclass(frozen=True)
class Pairs:
    """The Q/DQ pairs with one fault: a single pair if it costs nearly as much as all of them, else
    all. `db`: the SQNR that the outputs gain without them; None: they make all of the noise."""

    subject: Subject
    fault: Fault
    rows: Sequence[PairFidelity]
    db: float | None

    @classmethod
    def of(cls, subject: Subject, fault: Fault, least: float = LEAST_DB) -> Self | None:
        """None if there are none, or if they cost too little."""
        fidelity = subject.report.layer_fidelity
        if fidelity is None or fidelity.sqnr_db is None:
            return None
        whole = fidelity.sqnr_db
        group = next((faulty for faulty in fidelity.faults if faulty.fault == fault), None)
        if group is None:
            return None
        gain = _gain(group.without, whole)
        rows = [row for row in fidelity.values if row.pair in group.pairs]
        rows.sort(key=lambda row: -_gain(row.without, whole))
        if gain < least or not rows:
            return None
        if _gain(rows[0].without, whole) >= _NEARLY * gain:
            rows, gain = rows[:1], _gain(rows[0].without, whole)
        return cls(subject, fault, rows, None if gain == inf else gain)

    @property
    def readers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node for row in self.rows for node in row.readers))

    @property
    def share(self) -> float:
        """Of the noise at the outputs."""
        return 1.0 if self.db is None else 1 - 10 ** (-self.db / 10)

    def finding(
        self, *, what: str, why: str, change: RecipeChange, rule: Rule | None = None
    ) -> ExplainFinding:
        nodes, cost = self.readers, _of_noise(self.subject, self.share, self.db)
        rule = rule or self.fault
        return ExplainFinding(rule, "accuracy", what, why, nodes, modules(nodes), cost, change)


def _gain(without: OutputFidelity | None, whole: float) -> float:
    if without is None:
        return 0.0
    return inf if without.sqnr_db is None else max(without.sqnr_db - whole, 0.0)


def _ranges(row: PairFidelity) -> str:
    least, most = row.seen
    return (
        f"its values lie between {least:.3g} and {most:.3g}, its codes cover {row.low:.3g} to "
        f"{row.high:.3g}"
    )


def _others(pairs: Pairs) -> str:
    more = len(pairs.rows) - 1
    return f"; the same applies to {several(more, 'more tensor')}" if more else ""


def _decided(subject: Subject, pairs: Pairs) -> list[NodeDecision]:
    """The rows of the quantization log for these values."""
    values = {row.value for row in pairs.rows}
    rows = subject.report.quantization
    return [row for row in rows if row.activation in values and row.high is not None]


def _foreign(subject: Subject, pairs: Pairs) -> RecipeChange | None:
    """The change if a pair has another range than the recipe gives it, so that no setting helps;
    None if all pairs have the ranges of the recipe. A value may have several pairs, of different
    formats, and the log has the range of one of them."""
    decided = {row.activation: row for row in _decided(subject, pairs)}
    if any(row.method == GIVEN for row in decided.values()):
        return advice(
            "choose the range again in the tool that quantized the graph: optkit keeps it"
        )
    fidelity = subject.report.layer_fidelity
    for row in pairs.rows:
        planned = decided.get(row.value)
        if planned is None or planned.low is None or planned.high is None:
            continue
        reach = max(-planned.low, planned.high)
        every = fidelity.values if fidelity is not None else ()
        ranges = [max(-one.low, one.high) for one in every if one.value == row.value]
        if not any(isclose(reach, one, rel_tol=_SAME) for one in ranges):
            return advice(
                f"build it again: the recipe gives {row.value} the range {planned.low:.3g} to "
                f"{planned.high:.3g}, but the graph has another range"
            )
    return None if decided else advice("give the pair the range of its values")


def _wider(subject: Subject, pairs: Pairs) -> RecipeChange:
    """The change that gives ranges with all values: another method if the present one excludes
    some; more samples if calibration met smaller values by chance; else other samples. (A fresh
    sample exceeds the extremes of n others with probability 1 / (n + 1).)"""
    foreign, calibration = _foreign(subject, pairs), subject.recipe.calibration
    if foreign is not None:
        return foreign
    if calibration is not None and {row.method for row in _decided(subject, pairs)} != {"minmax"}:
        key = ("calibration", "method")
        return advice("use ranges that contain all values of the calibration", {key: "minmax"})
    checked, worst = subject.result.calibration, pairs.rows[0]
    count = checked.samples if checked is not None else 0
    if worst.share * (count + 1) > _CHANCE:
        return advice(
            "calibrate on samples that were prepared as those in use: "
            f"{worst.share:.2%} of these values are beyond all that {count} calibration samples "
            "have, which more samples of the same kind would not reach"
        )
    text = "calibrate on more samples that resemble the data in use"
    if calibration is None:
        return advice(text)
    return advice(text, {("calibration", "samples"): 4 * calibration.samples})


def _narrower(subject: Subject, pairs: Pairs) -> RecipeChange:
    """The change that gives ranges without extremes that only calibration met. A method that clips
    does not help: the weights would still be rounded for these extremes."""
    text = "remove the samples with extreme values from the calibration data"
    return _foreign(subject, pairs) or advice(f"{text}; no setting of the recipe does that")
