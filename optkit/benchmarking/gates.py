"""Gates: limits on drop, fidelity, latency and size, each judged pass, fail or inconclusive.

A gate passes when the whole 95 % interval keeps the limit, fails when the whole interval breaks
it, and is inconclusive in between: the point estimate alone never decides. A latency that was not
measured decides nothing unless the recipe accepts its kind of evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from optkit.benchmarking.accuracy import samples_to_decide
from optkit.measurement import (
    Difference,
    Fidelity,
    GateRow,
    Interval,
    Latency,
    Outcome,
    Score,
    Verdict,
)
from optkit.runtime import Evidence


class Gates(Protocol):
    """The limits of a recipe; None = no such gate."""

    @property
    def max_drop(self) -> float | None: ...  # fraction: 0.01 = one point of a proportion
    @property
    def min_sqnr(self) -> float | None: ...  # dB
    @property
    def max_latency_ms(self) -> float | None: ...
    @property
    def min_speedup(self) -> float | None: ...
    @property
    def min_throughput(self) -> float | None: ...  # samples per second
    @property
    def max_bytes(self) -> int | None: ...
    @property
    def accept(self) -> Collection[str]: ...  # evidence besides "measured" that timing gates trust


@dataclass(frozen=True)
class _Seen:
    """What a gate looks at."""

    value: float
    ci95: Interval | None
    evidence: Evidence


def judge(
    gates: Gates,
    *,
    drop: Difference | None = None,
    scores: tuple[Score, Score] | None = None,
    fidelity: Fidelity | None = None,
    latency: Latency | None = None,
    speedup: Difference | None = None,
    size_bytes: int | None = None,
) -> Verdict:
    """Judge every gate that is set. `drop` None = there was no evaluation task.

    `scores` (baseline, candidate) let an inconclusive drop say how many samples would decide it.
    The verdict is fail if one gate fails, else inconclusive if one is or if there was no
    evaluation task, else pass; `reasons` are those of the gates that did not pass.
    """
    rows = (
        *_drop_rows(gates, drop, scores),
        *_fidelity_rows(gates, fidelity),
        *_timing_rows(gates, latency, speedup),
        *_size_rows(gates, size_bytes),
    )
    reasons = [f"{row.gate}: {row.reason}" for row in rows if row.outcome != "pass"]
    if drop is None and gates.max_drop is None:
        reasons.append(_NO_TASK)
    outcomes = {row.outcome for row in rows}
    verdict: Outcome = "fail" if "fail" in outcomes else "inconclusive" if reasons else "pass"
    return Verdict(verdict, rows, tuple(reasons))


_NO_TASK = "there is no evaluation task, so accuracy is unknown"


def _drop_rows(
    gates: Gates, drop: Difference | None, scores: tuple[Score, Score] | None
) -> Iterator[GateRow]:
    limit = gates.max_drop
    if limit is None:
        return
    if drop is None:
        yield GateRow("max_drop", limit, None, None, None, "inconclusive", _NO_TASK)
        return
    proportion = scores is not None and all(score.proportion for score in scores)
    unit = "points" if proportion else "%"
    row = _at_most(
        "max_drop", limit, _seen(drop), lambda v: f"{round(100 * v, 2) + 0.0:.2f} {unit}"
    )
    if row.outcome == "inconclusive" and scores is not None:
        row = replace(row, reason=f"{row.reason}; {_advice(scores, limit)}")
    yield row


def _advice(scores: tuple[Score, Score], limit: float) -> str:
    needed = samples_to_decide(*scores, limit)
    if needed is None:
        return "no realistic number of samples would decide it at the observed rates"
    return (
        f"about {needed:,} samples would decide it at the observed rates ({scores[0].samples:,} "
        "were used)"
    )


def _fidelity_rows(gates: Gates, fidelity: Fidelity | None) -> Iterator[GateRow]:
    limit = gates.min_sqnr
    if limit is None:
        return
    if fidelity is None:
        yield _unseen("min_sqnr", limit, "no fidelity was computed")
    elif fidelity.sqnr_db is None:
        reason = f"the outputs are bit-equal to {fidelity.reference}"
        yield GateRow("min_sqnr", limit, None, None, fidelity.evidence, "pass", reason)
    else:
        seen = _Seen(fidelity.sqnr_db, fidelity.ci95, fidelity.evidence)
        yield _at_least("min_sqnr", limit, seen, lambda v: f"{v:.1f} dB")


def _timing_rows(
    gates: Gates, latency: Latency | None, speedup: Difference | None
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


def _size_rows(gates: Gates, size_bytes: int | None) -> Iterator[GateRow]:
    limit = gates.max_bytes
    if limit is None:
        return
    if size_bytes is None:
        yield _unseen("max_bytes", limit, "there is no engine yet")
        return
    seen = _Seen(size_bytes, None, Evidence.COMPILED)
    yield _at_most("max_bytes", limit, seen, lambda v: f"{v:,.0f} bytes")


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
    judge_one: _Judge, gate: str, limit: float, seen: _Seen | None, show: _Show, gates: Gates
) -> GateRow:
    """A timing gate: only evidence that is measured or accepted decides it."""
    if seen is None:
        return _unseen(gate, limit, "there is no latency for it")
    if seen.evidence != Evidence.MEASURED and seen.evidence not in gates.accept:
        reason = (
            f"{show(seen.value)} is {seen.evidence}, not measured; measure on the target, "
            f"or set gates.accept: [{seen.evidence}]"
        )
        return GateRow(gate, limit, seen.value, seen.ci95, seen.evidence, "inconclusive", reason)
    return judge_one(gate, limit, seen, show)


def _row(gate: str, limit: float, seen: _Seen, show: _Show, *, kept: bool, broken: bool) -> GateRow:
    outcome: Outcome = "pass" if kept else "fail" if broken else "inconclusive"
    verb = {"pass": "keeps", "fail": "breaks", "inconclusive": "may or may not keep"}[outcome]
    interval = "" if seen.ci95 is None else f" ({_interval_name(seen)} {_span(seen.ci95, show)})"
    reason = f"{show(seen.value)}{interval} {verb} the limit of {show(limit)}"
    return GateRow(gate, limit, seen.value, seen.ci95, seen.evidence, outcome, reason)


def _interval_name(seen: _Seen) -> str:
    return "band" if seen.evidence == Evidence.PREDICTED else "95 % interval"


def _span(interval: Interval, show: _Show) -> str:
    """`low to high`, the unit once."""
    low, high = show(interval.low), show(interval.high)
    digits, _, unit = low.partition(" ")
    return f"{digits if unit else low} to {high}"


def _unseen(gate: str, limit: float, why: str) -> GateRow:
    return GateRow(gate, limit, None, None, None, "inconclusive", why)
