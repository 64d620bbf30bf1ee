"""Gates: limits on accuracy, fidelity, latency, size and memory, each judged pass, fail or
inconclusive.

A gate passes when the whole 95 % interval keeps the limit, fails when the whole interval breaks
it, and is inconclusive in between: the point estimate alone never decides. A latency that was not
measured decides nothing unless the recipe accepts its kind of evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from optkit.craft.benchmarking import sequential as looks
from optkit.craft.benchmarking import slices as by_slice
from optkit.craft.benchmarking.accuracy import too_little, value_interval
from optkit.craft.benchmarking.doubts import Accuracy, doubts
from optkit.craft.benchmarking.intervals import CONFIDENCE
from optkit.craft.benchmarking.paired_drop import drop as drop_between
from optkit.craft.benchmarking.sample_size import samples_to_decide, samples_to_show
from optkit.craft.benchmarking.slices import Slice
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import (
    Basis,
    Difference,
    Fidelity,
    GateRow,
    Interval,
    Latency,
    Memory,
    Outcome,
    Score,
    Verdict,
)
from optkit.ground.recipe.sections import Limits


@dataclass(frozen=True)
class _Seen:
    """The figure that a gate judges."""

    value: float
    ci95: Interval | None
    evidence: Evidence


def judge(
    gates: Limits,
    *,
    drop: Difference | None = None,
    scores: tuple[Score, Score] | None = None,
    slices: Sequence[str] = (),
    fidelity: Fidelity | None = None,
    latency: Latency | None = None,
    speedup: Difference | None = None,
    size_bytes: int | None = None,
    memory: Memory | None = None,
    told: str | None = None,
) -> Verdict:
    """Judge every gate that is set. `drop`: None if there was no evaluation task.

    `scores`: of baseline and candidate; `slices`: the slice of each of their samples. `memory`:
    only a measured figure decides. `told`: a note on how the samples were scored. The verdict is
    fail if one gate fails; otherwise inconclusive if one is inconclusive or if there was no
    evaluation task; otherwise pass. `reasons` are those of the gates that did not pass.
    """
    scored = (
        *_drop_rows(gates, drop, scores),
        *_value_rows(gates, scores),
        *_slice_rows(gates, scores, slices),
    )
    if told is not None:
        scored = tuple(replace(row, reason=f"{row.reason}; {told}") for row in scored)
    rows = (
        *scored,
        *_fidelity_rows(gates, fidelity),
        *_timing_rows(gates, latency, speedup),
        *_size_rows(gates, size_bytes),
        *_memory_rows(gates, memory),
    )
    reasons = [f"{row.gate}: {row.reason}" for row in rows if row.outcome != "pass"]
    if drop is None and gates.max_drop is None:
        reasons.append(NO_TASK)
    if fidelity is not None:
        accuracy = "unjudged" if drop is None else _accuracy(scored)
        reasons += doubts(fidelity, accuracy, limited=gates.min_sqnr is not None)
    outcomes = {row.outcome for row in rows}
    verdict: Outcome = "fail" if "fail" in outcomes else "inconclusive" if reasons else "pass"
    return Verdict(verdict, rows, tuple(reasons))


def certain(gates: Limits, scores: tuple[Score, Score], slices: Sequence[str]) -> bool:
    """Whether the scores so far decide the gates on accuracy (see `sequential`): one gate fails, or
    all pass. False if there is no such gate."""
    confidence = looks.CONFIDENCE
    rows = (
        *_drop_rows(gates, drop_between(*scores, confidence), scores),
        *_value_rows(gates, scores, confidence),
        *_slice_rows(gates, scores, slices, confidence),
    )
    outcomes = {row.outcome for row in rows}
    return "fail" in outcomes or outcomes == {"pass"}


NO_TASK = "there is no evaluation task, so accuracy is unknown"


def _drop_rows(
    gates: Limits, drop: Difference | None, scores: tuple[Score, Score] | None
) -> Iterator[GateRow]:
    limit = gates.max_drop
    if limit is None:
        return
    if drop is None:
        yield GateRow("max_drop", limit, None, None, None, "inconclusive", NO_TASK)
        return
    show = _points if scores is not None and _in_points(*scores) else _percent
    row = _at_most("max_drop", limit, _seen(drop), show)
    if scores is None:
        yield row
        return
    used = scores[0].samples
    if row.outcome == "inconclusive":
        row = _advised(row, samples_to_decide(*scores, limit), used)
    yield _counted(row, drop.basis, used)


def _value_rows(
    gates: Limits, scores: tuple[Score, Score] | None, confidence: float = CONFIDENCE
) -> Iterator[GateRow]:
    for name, limit, judge_one in (
        ("min_value", gates.min_value, _at_least),
        ("max_value", gates.max_value, _at_most),
    ):
        if limit is None:
            continue
        if scores is None:
            yield _unseen(name, limit, NO_TASK)
            continue
        score = scores[1]
        interval = value_interval(score, confidence)
        if interval is None:
            yield _unseen(name, limit, too_little(score) or NO_TASK)
            continue
        row = judge_one(name, limit, _Seen(score.value, interval, score.evidence), _shown(score))
        if row.outcome == "inconclusive":
            row = _advised(row, samples_to_show(score, limit), score.samples)
        yield _counted(row, score.basis, score.samples)


def _slice_rows(
    gates: Limits,
    scores: tuple[Score, Score] | None,
    names: Sequence[str],
    confidence: float = CONFIDENCE,
) -> Iterator[GateRow]:
    for name, limit, split, at_most in (
        ("max_slice_drop", gates.max_slice_drop, by_slice.drops, True),
        ("min_slice_value", gates.min_slice_value, by_slice.values, False),
        ("max_slice_value", gates.max_slice_value, by_slice.values, True),
    ):
        if limit is None:
            continue
        if scores is None:
            yield _unseen(name, limit, NO_TASK)
        elif not names and not scores[1].slices:
            yield _unseen(name, limit, _NO_SLICES)
        elif not scores[1].per_sample and not scores[1].slices:
            yield _unseen(name, limit, f"{scores[1].metric} is no mean over samples")
        else:
            yield _slice_row(name, limit, split(names, *scores, confidence), at_most=at_most)


_NO_SLICES = "the task names no slices, and its labels are no single integers"


def _slice_row(gate: str, limit: float, slices: Sequence[Slice], *, at_most: bool) -> GateRow:
    worst = by_slice.worst(slices, limit, at_most=at_most)
    group = worst.slice
    drop = gate == "max_slice_drop"
    show = (
        _shown(group.candidate)
        if not drop
        else (_points if _in_points(group.baseline, group.candidate) else _percent)
    )
    samples = group.candidate.samples
    text = f"worst of {worst.count} slices: {group.name!r}, {samples:,} samples"
    if worst.interval is None:
        return GateRow(
            gate,
            limit,
            group.value,
            None,
            group.candidate.evidence,
            "inconclusive",
            f"{text}, which are too few to say",
        )
    seen = _Seen(group.value, worst.interval, group.candidate.evidence)
    row = (_at_most if at_most else _at_least)(gate, limit, seen, show)
    every = ", of all slices at once" if worst.outcome == "fail" else ""
    row = replace(row, outcome=worst.outcome, reason=f"{text}, {row.reason}{every}")
    if row.outcome != "inconclusive":
        return row
    needed = (
        samples_to_decide(group.baseline, group.candidate, limit)
        if drop
        else samples_to_show(group.candidate, limit)
    )
    return _advised(row, needed, samples)


def _accuracy(scored: Iterable[GateRow]) -> Accuracy:
    """What a task found."""
    return "broken" if any(row.outcome == "fail" for row in scored) else "kept"


def _in_points(*scores: Score) -> bool:
    return all(score.proportion for score in scores)


def _points(value: float) -> str:
    return f"{round(100 * value, 2) + 0.0:.2f} points"


def _percent(value: float) -> str:
    return f"{round(100 * value, 2) + 0.0:.2f} %"


def _shown(score: Score) -> Callable[[float], str]:
    """A value of the metric as text."""
    return _percent if score.proportion else lambda v: f"{v:.4g}"


def _advised(row: GateRow, needed: int | None, used: int) -> GateRow:
    """The reason, with the number of samples that would decide the gate."""
    advice = (
        "no realistic number of samples would decide it"
        if needed is None
        else f"about {needed:,} samples in all would decide it (probability 80 %; {used:,} were "
        "used)"
    )
    return replace(row, reason=f"{row.reason}; {advice}")


def _counted(row: GateRow, basis: Basis | None, used: int) -> GateRow:
    """The reason, with what the interval counts if it is not the number of samples."""
    if basis is None or basis.kind == "samples":
        return row
    if basis.kind == "groups":
        note = f"judged by {basis.units:,} groups of samples"
    else:
        note = (
            f"neighbouring samples are alike, so {used:,} count as about {basis.units:,}: if they "
            "belong together, such as frames of a clip, give their groups "
            "(docs/understand/gates.md)"
        )
    return replace(row, reason=f"{row.reason}; {note}")


def _fidelity_rows(gates: Limits, fidelity: Fidelity | None) -> Iterator[GateRow]:
    limit = gates.min_sqnr
    if limit is None:
        return
    if fidelity is None:
        yield _unseen("min_sqnr", limit, "no fidelity was computed")
    elif fidelity.all_zero:
        reason = f"all outputs are zero, also those of {fidelity.reference}: nothing to compare"
        yield GateRow("min_sqnr", limit, None, None, fidelity.evidence, "inconclusive", reason)
    elif fidelity.worst.sqnr_db is None:
        reason = f"the outputs are bit-equal to {fidelity.reference}"
        yield GateRow("min_sqnr", limit, None, None, fidelity.evidence, "pass", reason)
    else:
        seen = _Seen(fidelity.worst.sqnr_db, fidelity.worst.ci95, fidelity.evidence)
        row = _at_least("min_sqnr", limit, seen, lambda v: f"{v:.1f} dB")
        worst = f"; the worst is {fidelity.where}" if fidelity.where else ""
        yield replace(row, reason=f"{row.reason}{worst}")


def _timing_rows(
    gates: Limits, latency: Latency | None, speedup: Difference | None
) -> Iterator[GateRow]:
    seen = None if latency is None else _Seen(latency.p50_ms, _interval(latency), latency.evidence)
    rate = None if latency is None else _throughput(latency)
    ratio = None if speedup is None else _seen(speedup)
    if gates.max_latency_ms is not None:
        yield _trusted(
            _at_most, "max_latency_ms", gates.max_latency_ms, seen, lambda v: f"{v:.3g} ms", gates
        )
    if gates.min_speedup is not None:
        yield _trusted(
            _at_least, "min_speedup", gates.min_speedup, ratio, lambda v: f"{v:.2f}×", gates
        )
    if gates.min_throughput is not None:
        yield _trusted(
            _at_least, "min_throughput", gates.min_throughput, rate, lambda v: f"{v:.4g}/s", gates
        )


def _size_rows(gates: Limits, size_bytes: int | None) -> Iterator[GateRow]:
    limit = gates.max_bytes
    if limit is None:
        return
    if size_bytes is None:
        yield _unseen("max_bytes", limit, "there is no engine yet")
    else:
        yield _at_most("max_bytes", limit, _Seen(size_bytes, None, Evidence.COMPILED), _in_bytes)


def _memory_rows(gates: Limits, memory: Memory | None) -> Iterator[GateRow]:
    limit = gates.max_memory_bytes
    if limit is None:
        return
    if memory is None or memory.evidence != Evidence.MEASURED:
        why = "the memory of a run was not measured"
        if memory is not None:
            why += (
                f"; the compiler states {_in_bytes(memory.bytes)} for weights and activations "
                f"({memory.evidence})"
            )
        yield _unseen("max_memory_bytes", limit, why)
        return
    seen = _Seen(memory.bytes, None, memory.evidence)
    row = _at_most("max_memory_bytes", limit, seen, _in_bytes)
    yield replace(row, reason="; ".join([row.reason, *memory.marks]))


def _in_bytes(value: float) -> str:
    return f"{value:,.0f} bytes"


def _interval(latency: Latency) -> Interval | None:
    return latency.ci95_ms if latency.evidence == Evidence.MEASURED else latency.band


def _throughput(latency: Latency) -> _Seen:
    ms = _interval(latency)
    per_second = latency.batch * 1e3
    rates = None if ms is None else Interval(per_second / ms.high, per_second / ms.low)
    return _Seen(latency.throughput, rates, latency.evidence)


def _seen(difference: Difference) -> _Seen:
    return _Seen(difference.value, difference.ci95, difference.evidence)


_Show = Callable[[float], str]
_Judge = Callable[[str, float, _Seen, _Show], GateRow]


def _at_most(gate: str, limit: float, seen: _Seen, show: _Show) -> GateRow:
    low, high = seen.ci95 or (seen.value, seen.value)
    return _row(gate, limit, seen, show, kept=high <= limit, broken=low > limit)


def _at_least(gate: str, limit: float, seen: _Seen, show: _Show) -> GateRow:
    low, high = seen.ci95 or (seen.value, seen.value)
    return _row(gate, limit, seen, show, kept=low >= limit, broken=high < limit)


def _trusted(
    judge_one: _Judge, gate: str, limit: float, seen: _Seen | None, show: _Show, gates: Limits
) -> GateRow:
    """The outcome of a timing gate. Only figures with measured or accepted evidence decide it."""
    if seen is None:
        return _unseen(gate, limit, "there is no latency for it")
    # a StrEnum equals its text
    if seen.evidence != Evidence.MEASURED and seen.evidence not in gates.accept:  # type: ignore[comparison-overlap]
        reason = (
            f"{show(seen.value)} is {seen.evidence}, not measured; measure on the target, "
            f"or set gates.accept: [{seen.evidence}]"
        )
        return GateRow(gate, limit, seen.value, seen.ci95, seen.evidence, "inconclusive", reason)
    return judge_one(gate, limit, seen, show)


def _row(gate: str, limit: float, seen: _Seen, show: _Show, *, kept: bool, broken: bool) -> GateRow:
    outcome: Outcome = "pass" if kept else "fail" if broken else "inconclusive"
    verb = {"pass": "keeps", "fail": "breaks", "inconclusive": "may or may not keep"}[outcome]
    name = "band" if seen.evidence == Evidence.PREDICTED else "95 % interval"
    interval = "" if seen.ci95 is None else f"{name} {_span(seen.ci95, show)}, "
    reason = f"{show(seen.value)} ({interval}{seen.evidence}) {verb} the limit of {show(limit)}"
    return GateRow(gate, limit, seen.value, seen.ci95, seen.evidence, outcome, reason)


def _span(interval: Interval, show: _Show) -> str:
    """`low to high`, with the unit once."""
    low, high = show(interval.low), show(interval.high)
    digits, _, unit = low.partition(" ")
    return f"{digits if unit else low} to {high}"


def _unseen(gate: str, limit: float, why: str) -> GateRow:
    return GateRow(gate, limit, None, None, None, "inconclusive", why)
