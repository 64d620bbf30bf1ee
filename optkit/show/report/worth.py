"""What the speedup of a build shows: whether the candidate is worth shipping, and the words for it.

A figure shows a gain or a loss only if its whole interval does. Where 1.0 lies in the interval, the
words say that nothing is shown, and how to find out.
"""

from __future__ import annotations

import shlex
from typing import Literal

from optkit.facts.documents.result import Result
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Fidelity, Latency
from optkit.facts.precisions import PRECISIONS
from optkit.show.report import figures
from optkit.show.report.titles import baseline_label, compiler, device_of, is_cpu, spelled

WORTH = 1.05
"""The least speedup that is worth another numeric format: below 5 % a change of the driver, of the
batch or of the clock decides what is faster."""

SMALLER, LARGER = 0.9, 1.05  # of the baseline's size: beyond these the sentence names the size

Shown = Literal["gain", "too little", "loss", "nothing"]


def shown(speedup: Difference) -> Shown:
    """What the whole interval shows; without an interval, nothing."""
    if speedup.ci95 is None:
        return "nothing"
    low, high = speedup.ci95
    if high < 1:
        return "loss"
    if high < WORTH or (low > 1 and speedup.value < WORTH):
        return "too little"
    return "gain" if low > 1 else "nothing"


def compared(result: Result) -> Difference | None:
    """The speedup over a baseline of another precision; None if there is none."""
    base = result.baseline
    return None if base is None or base.precision == result.precision else result.speedup


def gain(result: Result, speedup: Difference) -> str:
    """`INT8 is 1.34× as fast as FP16 on NVIDIA L4 (1.01 to 1.78, predicted)`, if that is shown."""
    name, where = spelled(result.precision), device_of(result)
    base = spelled(baseline_label(result))
    times, how = figures.times(speedup.value), interval(result, speedup)
    what = shown(speedup)
    if what == "too little" and speedup.value < 1:
        what = "nothing"
    match what:
        case "nothing":
            return f"no gain is shown for {name} on {where}: {times} as fast as {base} ({how})"
        case "loss":
            return f"{name} is slower than {base} on {where} ({times} as fast, {how})"
        case _:
            return f"{name} is {times} as fast as {base} on {where} ({how})"


def disturbed(result: Result, speedup: Difference) -> str:
    """A speedup that was measured under bad conditions, without a claim."""
    base = spelled(baseline_label(result))
    return f"{figures.times(speedup.value)} as fast as {base} ({interval(result, speedup)})"


def interval(result: Result, speedup: Difference) -> str:
    """`1.35 to 2.39, predicted`; `measured under bad conditions, so the interval is not known`: the
    spread within a disturbed run does not tell how far another run would be."""
    if speedup.evidence is Evidence.MEASURED and marks(result):
        return f"{speedup.evidence} under bad conditions, so the interval is not known"
    span = figures.span(speedup.ci95, lambda value: f"{value:.2f}") or "interval unknown"
    return f"{span}, {speedup.evidence}{serving(result)}"


def serving(result: Result) -> str:
    """` for TensorRT`, if the latency is that of another compiler than made the engine; else
    empty."""
    return f" for {name}" if (name := _serving(result)) else ""


def _serving(result: Result) -> str | None:
    """The compiler that the predicted latency is of, if none made an engine by which it runs."""
    engine, latency = result.engine, result.latency
    if engine is not None and engine.serving:
        return compiler(engine.serving)
    predicted = latency is not None and latency.evidence is Evidence.PREDICTED
    return pending_engine(result) if predicted else None


def compiled_by(result: Result) -> str:
    """` by TensorRT-RTX`, if the latency is that of another compiler; else empty."""
    engine = result.engine
    return f" by {compiler(engine.backend)}" if engine and engine.serving else ""


def time(latency: Latency) -> str:
    """`0.515 ms at batch 32 (0.4 to 0.68 ms, predicted)`."""
    span = figures.span(latency.ci95_ms or latency.band, figures.ms)
    how = ", ".join(filter(None, (span, latency.evidence)))
    return f"{figures.ms(latency.p50_ms)} at batch {latency.batch} ({how})"


def marks(result: Result) -> list[str]:
    """Why the measured latencies are not reliable, each reason once."""
    sides = (result.latency, result.baseline.latency if result.baseline else None)
    return list(dict.fromkeys(mark for one in sides if one for mark in one.marks))


def to_measure(result: Result) -> str:
    """What to do to get a measured latency, as an order."""
    timed = result.speedup or result.latency
    if timed is not None and timed.evidence is Evidence.MEASURED:
        return _again(result)
    what = _finish(result)
    if result.artifact is None:
        return what
    if engine := _serving(result) or pending_engine(result):
        return f"{what} (it compiles the missing {engine} engine and measures the latency)"
    return f"{what} (it measures the latency)"


def _finish(result: Result) -> str:
    where = "on a machine with this device"
    if result.artifact is None:
        return f"measure it {where}"
    return f"run `{figures.name(f'optkit finish {shlex.quote(result.artifact)}')}` {where}"


def _again(result: Result) -> str:
    if not marks(result):
        return "run `optkit cache clear --step bench` and the same command to measure again"
    return "run the same command again while nothing else uses the machine"


def pending_engine(result: Result) -> str | None:
    """The compiler of the engine that does not exist yet, as people write it; None if there is an
    engine."""
    engine = result.engine
    if engine is None or engine.evidence is not Evidence.PENDING:
        return None
    return compiler(engine.backend)


def resized(result: Result) -> str:
    """A sentence on the size, if the engine is much smaller than the baseline's, or larger; else
    empty."""
    size = result.size
    if size is None or not size.baseline_bytes:
        return ""
    change, name = size.bytes / size.baseline_bytes - 1, spelled(result.precision)
    if SMALLER < 1 + change < LARGER:
        return ""
    much = f"{abs(change):.0%} {'larger' if change > 0 else 'smaller'}"
    engine = f"{figures.size(size.bytes)} in place of {figures.size(size.baseline_bytes)}"
    known = f"{size.evidence}{compiled_by(result)}"
    return f" The {name} engine is {much} ({engine}, {known})."


def besides(result: Result) -> str:
    """Sentences for a candidate that is not faster: its size, and the form that may be faster on a
    CPU."""
    many = result.latency is not None and result.latency.batch > 1 and is_cpu(result.target)
    if not many or result.precision is None or not PRECISIONS[result.precision].weight_only:
        return resized(result)
    name = spelled(result.precision)
    return (
        f"{resized(result)} {name} saves time where reading the weights takes most of it, as at "
        "batch 1; at larger batches INT8 (`-p int8`) is usually faster: build it to compare."
    )


def larger(result: Result) -> str:
    """The same, if the engine is larger."""
    size = result.size
    grown = size is not None and size.baseline_bytes and size.bytes > size.baseline_bytes
    return resized(result) if grown else ""


def accuracy(result: Result) -> str:
    """What the candidate loses: `drop 0.22 points of top1 (-0.20 to 0.81 points, simulated)`."""
    drop, fidelity = result.drop, result.fidelity
    if drop is not None:
        proportion = result.accuracy is not None and result.accuracy.proportion
        show = figures.points if proportion else figures.percent
        metric = f" of {figures.name(result.accuracy.metric)}" if result.accuracy else ""
        if drop.value > 0:
            how = ", ".join(filter(None, (figures.span(drop.ci95, show), drop.evidence)))
            return f"drop {show(drop.value)}{metric} ({how})"
        most = f"at most {show(drop.ci95[1])}, " if drop.ci95 and drop.ci95[1] > 0 else ""
        return f"no drop{metric} ({most}{drop.evidence})"
    return _likeness(fidelity) if fidelity is not None else "accuracy unknown"


def _likeness(fidelity: Fidelity) -> str:
    worst = fidelity.worst.sqnr_db
    near = "equal" if worst is None else figures.decibels(worst)
    at = f" at {figures.name(fidelity.where)}" if fidelity.where else ""
    return f"SQNR {near} to {spelled(fidelity.reference)}{at} ({fidelity.evidence})"
