"""Figures of two builds: a difference is reported only if the intervals of both support it.

The interval of a difference of two figures from separate runs is computed from their intervals
(MOVER, Zou & Donner 2008; for two proportions it is Newcombe's method 10 of 1998):

    low  = b - a - √((b - b_low)² + (a_high - a)²)
    high = b - a + √((b_high - b)² + (a - a_low)²)

For latencies it is computed from the logarithms, which gives the ratio. Two accuracies on the same
samples can be compared more precisely: the drop in one build, sample by sample, shows smaller
differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, hypot, isfinite, log
from typing import Literal

from optkit.facts.documents.diff import FigureChange, FigureDiff, KnownFigure, Seen
from optkit.facts.documents.record import Object
from optkit.facts.documents.result import Result
from optkit.facts.measurement import Difference, Fidelity, Latency, Score
from optkit.satellites.difference.side import Side

Interval = tuple[float, float]
Change = Callable[[KnownFigure, KnownFigure], tuple[float, float, float] | None]


def compare(a: Side, b: Side) -> tuple[FigureDiff, ...]:
    """`figures` of optkit.diff/v1. `seen`: lower, higher, none (no difference seen) or unknown
    (they cannot be compared, see `note`) for figures with an interval; equal or other for exact
    figures."""
    assert a.result is not None
    assert b.result is not None
    rows = [*_latencies(a, b), *_qualities(a, b, a.result, b.result), *_exact(a.result, b.result)]
    return tuple(row for row in rows if row.a.value is not None or row.b.value is not None)


def _latencies(a: Side, b: Side) -> Iterator[FigureDiff]:
    before, after = _by_batch(a), _by_batch(b)
    for batch in sorted({*before, *after}):
        old, new = before.get(batch), after.get(batch)
        known = [_latency(latency) for latency in (old, new)]
        why = _elsewhere(a, b, old, new)
        yield _row(f"latency, batch {batch}", "ms", *known, change=_ratio, why=why)


def _latency(latency: Latency | None) -> KnownFigure:
    if latency is None:
        return KnownFigure()
    interval = latency.ci95_ms or latency.band
    return KnownFigure(value=latency.p50_ms, interval=interval, evidence=latency.evidence)


def _by_batch(side: Side) -> dict[int, Latency]:
    if side.report:
        return {figures.batch: figures for figures in side.report.latencies.engine}
    latency = side.result.latency if side.result else None
    return {latency.batch: latency} if latency else {}


_SHOWN = {"batch": "batch {}", "samples": "{} samples"}


def _apart(old: object | None, new: object | None, *fields: str) -> str | None:
    """Why two records cannot be compared: their evidence differs, or one of `fields` does."""
    if old is None or new is None:
        return "only one of the two"
    for name in ("evidence", *fields):
        values = getattr(old, name), getattr(new, name)
        if values[0] != values[1]:
            return " beside ".join(_SHOWN.get(name, "{}").format(value) for value in values)
    return None


def _elsewhere(a: Side, b: Side, old: Latency | None, new: Latency | None) -> str | None:
    """Why two latencies cannot be compared."""
    apart = _apart(old, new, "batch")
    if apart is not None or old is None or new is None:
        return apart
    targets = [side.result.target if side.result else None for side in (a, b)]
    if targets[0] != targets[1]:
        return "on another target"
    machines = [_machine(side) for side in (a, b)]
    if all(machines) and machines[0] != machines[1]:
        return "on another machine"
    if old.marks or new.marks:
        return "measured under bad conditions"
    return None


def _machine(side: Side) -> Object | None:
    """The device of the machine that measured, if the report names it. The name of the host is not
    part of it, because several hosts may have this device, and neither is the driver, which is
    software."""
    if side.report is None:
        return None
    provenance = side.report.provenance
    machine = (provenance.finished or provenance).machine
    return machine and {key: machine[key] for key in machine.keys() - {"gpus", "host"}}


def _qualities(a: Side, b: Side, before: Result, after: Result) -> Iterator[FigureDiff]:
    """Task score, drop, speedup and fidelity."""
    old, new = before.accuracy, after.accuracy
    why = _apart(old, new, "metric", "samples")
    if why is None and len({_samples(a), _samples(b)} - {None}) > 1:
        why = "on other samples"
    either = new or old
    name = either.metric if either else "accuracy"
    yield _row(name, None, _figure(old), _figure(new), change=_difference, why=why)
    drops, speedups = (before.drop, after.drop), (before.speedup, after.speedup)
    yield _row("drop", None, *map(_figure, drops), change=_difference, why=_apart(*drops) or why)
    timed = _elsewhere(a, b, before.latency, after.latency)
    why = _apart(*speedups) or timed
    yield _row("speedup", "×", *map(_figure, speedups), change=_ratio, why=why)
    yield _fidelities(before.fidelity, after.fidelity)


def _fidelities(old: Fidelity | None, new: Fidelity | None) -> FigureDiff:
    known = [_worst(old), _worst(new)]
    why = _apart(old, new, "reference", "samples")
    if why is None and None in (known[0].value, known[1].value):
        why = "one of the two is bit-equal to its reference"
    names = {figure.where for figure in (old, new) if figure} - {""}
    of = "" if not names else f" of {names.pop()}" if len(names) == 1 else " of the worst output"
    return _row(f"SQNR{of}", "dB", *known, change=_difference, why=why)


def _worst(fidelity: Fidelity | None) -> KnownFigure:
    if fidelity is None:
        return KnownFigure()
    worst = fidelity.worst
    return KnownFigure(value=worst.sqnr_db, interval=worst.ci95, evidence=fidelity.evidence)


def _samples(side: Side) -> str | None:
    """The digest of the samples that were scored, if it is known."""
    digest = side.data.get("evaluation", {}).get("digest")
    return digest if isinstance(digest, str) else None


def _exact(a: Result, b: Result) -> Iterator[FigureDiff]:
    for name, unit, read in (
        ("engine size", "bytes", lambda r: r.engine and r.engine.bytes),
        ("fused layers", None, lambda r: r.engine and r.engine.layers),
        ("bytes between layers", "bytes", lambda r: r.engine and r.engine.bytes_moved),
        ("nodes planned", None, lambda r: _landing(r, "planned")),
        ("nodes landed", None, lambda r: _landing(r, "landed")),
    ):
        known = [
            KnownFigure(value=read(r), evidence=r.engine.evidence if r.engine else None)
            for r in (a, b)
        ]
        yield _same_or_other(name, unit, *known)
    verdicts = [KnownFigure(value=r.gate.verdict if r.gate else None) for r in (a, b)]
    yield _same_or_other("verdict", None, *verdicts)


def _landing(result: Result, counted: str) -> int | None:
    landing = result.engine.landing if result.engine else None
    return None if landing is None else getattr(landing, counted)


def _same_or_other(name: str, unit: str | None, a: KnownFigure, b: KnownFigure) -> FigureDiff:
    seen: Seen = "equal" if a.value == b.value else "other"
    return FigureDiff(figure=name, unit=unit, a=a, b=b, seen=seen)


def _figure(record: Score | Difference | None) -> KnownFigure:
    if record is None:
        return KnownFigure()
    return KnownFigure(value=record.value, interval=record.ci95, evidence=record.evidence)


def _row(
    figure: str,
    unit: str | None,
    a: KnownFigure,
    b: KnownFigure,
    *,
    change: Change,
    why: str | None,
) -> FigureDiff:
    row = FigureDiff(figure=figure, unit=unit, a=a, b=b, seen="unknown", note=why)
    if why is not None:
        return row
    if not a.interval or not b.interval:
        return row.model_copy(update={"note": "without an interval"})
    interval = change(a, b)
    kind: Literal["ratio", "difference"] = "ratio" if change is _ratio else "difference"
    if interval is None:
        return row.model_copy(update={"note": f"no {kind} of such values"})
    value, low, high = interval
    neutral = 1.0 if change is _ratio else 0.0
    shown = FigureChange(kind=kind, value=value, interval=(low, high))
    seen: Seen = "higher" if low > neutral else "lower" if high < neutral else "none"
    return row.model_copy(update={"change": shown, "seen": seen})


def _difference(a: KnownFigure, b: KnownFigure) -> tuple[float, float, float] | None:
    """b - a with the ends of its interval; None if one of them is too large for a number."""
    change = _mover(*_numbers(a), *_numbers(b))
    return change if all(map(isfinite, change)) else None


def _ratio(a: KnownFigure, b: KnownFigure) -> tuple[float, float, float] | None:
    """b / a with the ends of its interval; None if a logarithm does not exist, or the ratio is too
    large for a number."""
    (x, x_ends), (y, y_ends) = _numbers(a), _numbers(b)
    if min(x, y, *x_ends, *y_ends) <= 0:
        return None
    x_logs, y_logs = ((log(low), log(high)) for low, high in (x_ends, y_ends))
    try:
        value, low, high = map(exp, _mover(log(x), x_logs, log(y), y_logs))
    except OverflowError:
        return None
    return value, low, high


def _mover(x: float, x_ends: Interval, y: float, y_ends: Interval) -> tuple[float, float, float]:
    (x_low, x_high), (y_low, y_high) = x_ends, y_ends
    return y - x, y - x - hypot(y - y_low, x_high - x), y - x + hypot(y_high - y, x - x_low)


def _numbers(figure: KnownFigure) -> tuple[float, Interval]:
    assert not isinstance(figure.value, str | None)
    assert figure.interval is not None
    return figure.value, figure.interval
