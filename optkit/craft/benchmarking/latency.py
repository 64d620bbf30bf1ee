"""Latency: interleaved rounds of every session in turn, so that drift of the host hits all alike.

    warm up   each session until the second half of its calls is steady
    round 1:  int8 int8 int8 … fp16 fp16 fp16 …
    round 2:  fp16 fp16 fp16 … int8 int8 int8 …      (order drawn from a fixed seed)
    …

A round is a burst of the same number of calls of each session; the first call of a burst finds the
caches as the other session left them and is not counted. One sample is the wall time of
`Session.run`, host to host, transfers included. Garbage collection is off meanwhile.
Callers open ONNX Runtime sessions with spinning off: idle spinning threads of one session slow the
other (up to five times where cores are few). docs/studies/measuring.md has the reasons and
their sources.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from time import perf_counter_ns

import numpy as np

from optkit.craft.benchmarking import steady
from optkit.craft.benchmarking.intervals import (
    SEED,
    median_interval,
    percentiles,
    resampled_medians,
)
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Interval, Latency, PhaseTimes
from optkit.facts.tensors import Feed, narrowed
from optkit.ground.runtimes import NotedSession, PhasedSession, Progress, Session

MIN_ROUNDS = 10
ROUNDS = 40  # the number of rounds within the time budget; it determines the length of a burst
# runs that a percentile needs, so that ten runs lie beyond it; fewer would be chance
RUNS_FOR = {"p90": 100, "p95": 200, "p99": 1_000}
BEYOND = 0.05  # how far outside the interval the median of one half may lie without a mark
_BLOCKS = 16  # of the calls so far, whose medians show whether they are steady
_LEAST_CALLS = 8  # calls of a warm-up that show whether it is steady
_FIRST_LOOK_NS = 50_000_000
_PHASE_RUNS = 100
_PHASE_WARMUP = 5  # lazy work in the first, recording in the second
_NS_PER_MS = 1e6
_NS_PER_S = 1e9


def measure(
    sessions: Mapping[str, Callable[[], Session]],
    feed_for: Callable[[int], Feed],
    batches: Sequence[int],
    *,
    seconds: float,
    warmup_seconds: float,
    progress: Progress,
    between: Callable[[], None] = lambda: None,
) -> dict[tuple[str, int], Latency]:
    """Time every session at every batch size; the key of a result is (name, batch).

    `seconds` is the budget of one batch size, shared by all sessions; at least MIN_ROUNDS rounds
    run whatever it says. `warmup_seconds` is the most that a session may take to become steady at
    a batch size. All sessions stay open together. `between` is called between rounds, untimed.
    """
    results: dict[tuple[str, int], Latency] = {}
    with ExitStack() as stack:
        opened = {name: stack.enter_context(make()) for name, make in sessions.items()}
        for index, batch in enumerate(batches):
            left = seconds * (len(batches) - index)
            progress(f"timing batch {batch}, about {left:.0f} s left", index / len(batches))
            feed = feed_for(batch)
            with _no_garbage_collection():
                feeds = {name: narrowed(feed, each.inputs) for name, each in opened.items()}
                warm = {
                    name: _warm_up(session, feeds[name], warmup_seconds)
                    for name, session in opened.items()
                }
                together = sum(one.call_ns for one in warm.values())
                burst = max(1, int(seconds * _NS_PER_S / ROUNDS / together))
                times = _rounds(opened, feeds, burst, int(seconds * _NS_PER_S), between)
            for name, rounds in times.items():
                found = summarize(rounds, batch, warm[name])
                results[name, batch] = replace(found, note=_noted(opened[name], found.note))
    progress("timed", 1.0)
    return results


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class Warmup:
    """The result of a warm-up. `steady`: None if there were too few calls to tell; `call_ns`: the
    median of its second half."""

    runs: int
    steady: bool | None
    call_ns: int


def _warm_up(session: Session, feed: Feed, limit: float) -> Warmup:
    """Run until the second half of all calls is steady, at least twice, at most `limit` seconds.
    The check runs after 50 ms, and whenever the time has doubled."""
    times: list[int] = []
    start, look = perf_counter_ns(), _FIRST_LOOK_NS
    while True:
        spent = perf_counter_ns() - start
        over = spent >= limit * _NS_PER_S
        if len(times) >= 2 and (over or (spent >= look and len(times) >= _LEAST_CALLS)):
            settled = _is_steady(np.asarray(times))
            if settled or over:
                half = times[len(times) // 2 :]
                return Warmup(len(times), settled, max(1, int(np.median(half))))
            look = 2 * spent
        times += _burst(session, feed, 1)


def _is_steady(times: np.ndarray) -> bool | None:
    """Whether the second half of a series of calls stays at its last level."""
    if len(times) < _LEAST_CALLS:
        return None
    blocks = np.array_split(np.maximum(times, 1), min(_BLOCKS, len(times)))
    medians = np.asarray([np.median(block) for block in blocks])
    return steady.steady_from(medians) <= len(medians) // 2


def _burst(session: Session, feed: Feed, calls: int) -> list[int]:
    times = []
    for _ in range(calls):
        start = perf_counter_ns()
        session.run(feed)
        times.append(perf_counter_ns() - start)
    return times


def _rounds(
    sessions: Mapping[str, Session],
    feeds: Mapping[str, Feed],
    burst: int,
    budget_ns: int,
    between: Callable[[], None],
) -> dict[str, list[list[int]]]:
    """Per session, on its feed: a list of rounds, each `burst` call times in nanoseconds."""
    rng = np.random.default_rng(SEED)
    names = list(sessions)
    times: dict[str, list[list[int]]] = {name: [] for name in names}
    start = perf_counter_ns()
    done = 0
    while done < MIN_ROUNDS or perf_counter_ns() - start < budget_ns:
        for position in rng.permutation(len(names)):
            name = names[position]
            session, feed = sessions[name], feeds[name]
            if burst > 1:
                session.run(feed)  # fills the caches again; it is not counted
            times[name].append(_burst(session, feed, burst))
        between()
        done += 1
    return times


def _noted(session: Session, note: str | None) -> str | None:
    """The row with a note on what the session could not do."""
    told = session.note if isinstance(session, NotedSession) else None
    return "; ".join(filter(None, (told, note))) or None


def summarize(
    rounds_ns: Sequence[Sequence[int]], batch: int, warmup: Warmup | None = None
) -> Latency:
    """Quantiles over the runs of all rounds (in nanoseconds), the interval of the median, and facts
    that a reader needs: outliers, drift, whether the run was steady."""
    rounds = np.asarray(rounds_ns, dtype=np.float64) / _NS_PER_MS  # [rounds, burst]
    samples = rounds.ravel()
    p50 = float(np.median(samples))
    told = {
        name: float(np.percentile(samples, int(name[1:])))
        for name, runs in RUNS_FOR.items()
        if samples.size >= runs
    }
    ci95 = median_interval(rounds)
    shift = steady.drift(np.maximum(np.median(rounds, axis=1), 1 / _NS_PER_MS))
    return Latency(
        evidence=Evidence.MEASURED,
        p50_ms=p50,
        batch=batch,
        throughput=batch * 1e3 / p50,
        p90_ms=told.get("p90"),
        p95_ms=told.get("p95"),
        p99_ms=told.get("p99"),
        min_ms=float(samples.min()),
        ci95_ms=ci95,
        runs=samples.size,
        rounds=len(rounds_ns),
        samples_ms=tuple(samples.tolist()),
        outliers=_outliers(samples),
        drift=shift,
        warmup_runs=None if warmup is None else warmup.runs,
        steady=None if warmup is None else warmup.steady,
        marks=tuple(_marks(batch, _beyond(rounds, ci95), warmup)),
        note=_left_out(samples.size),
    )


def _outliers(samples: np.ndarray) -> int:
    """Runs that took longer than the upper quartile plus three interquartile ranges ("far out",
    Tukey 1977, Exploratory Data Analysis). All figures include them."""
    low, high = np.quantile(samples, (0.25, 0.75))
    return int((samples > high + 3 * (high - low)).sum())


def _beyond(rounds: np.ndarray, ci95: Interval | None) -> float:
    """How far the median of one half of the rounds [rounds, calls] lies outside the interval of
    all, as a share. Resampling assumes that the order of the rounds does not matter. If the halves
    differ by more than the interval, this is wrong, and another run would give another interval.
    The interval already covers a smaller shift."""
    if ci95 is None:
        return 0.0
    halves = [float(np.median(half)) for half in np.array_split(rounds, 2)]
    return max(0.0, max(halves) / ci95.high - 1, 1 - min(halves) / ci95.low)


def _marks(batch: int, beyond: float, warmup: Warmup | None) -> Iterator[str]:
    if warmup is not None and warmup.steady is False:
        yield f"batch {batch}: no steady state within {warmup.runs:,} runs of warm-up"
    if beyond > BEYOND:
        half = f"the median of one half of the run lies {beyond:.0%} outside the interval"
        yield f"batch {batch}: {half}"


def _left_out(runs: int) -> str | None:
    """The percentiles for which there are too few runs."""
    needed = {name: least for name, least in RUNS_FOR.items() if runs < least}
    if not needed:
        return None
    counts = [f"{name} {least:,}" for name, least in needed.items()]
    return f"{runs:,} runs are too few for {', '.join(needed)} (needed: {', '.join(counts)})"


def phases(
    make: Callable[[], Session], feed_for: Callable[[int], Feed], batches: Sequence[int]
) -> dict[int, PhaseTimes]:
    """The phases of a run on a device, by batch size. Empty for a session without phases."""
    found: dict[int, PhaseTimes] = {}
    with make() as session:
        if not isinstance(session, PhasedSession):
            return found
        for batch in batches:
            feed = feed_for(batch)
            for _ in range(_PHASE_WARMUP):
                session.run(feed)
            runs = [asdict(session.phases(feed)) for _ in range(_PHASE_RUNS)]
            medians = {name: float(np.median([run[name] for run in runs])) for name in runs[0]}
            found[batch] = PhaseTimes(**medians, runs=_PHASE_RUNS)
    return found


def ratio(baseline: Latency, candidate: Latency) -> Difference:
    """Speedup: baseline median / candidate median, with its 95 % interval.

    If both were measured in the same rounds, it is a bootstrap over rounds that resamples both
    sides together. This keeps the pairing and the correlation of neighbouring calls. Otherwise
    there is no interval. If both sides are the same object, it is exactly 1.
    """
    if baseline.batch != candidate.batch:
        raise ValueError(f"speedup across batch sizes {baseline.batch} and {candidate.batch}")
    value = baseline.p50_ms / candidate.p50_ms
    return Difference(
        value, _ratio_interval(baseline, candidate), baseline.evidence.weaker(candidate.evidence)
    )


def _ratio_interval(baseline: Latency, candidate: Latency) -> Interval | None:
    if candidate is baseline:
        return Interval(1.0, 1.0)
    if baseline.rounds is None or baseline.rounds != candidate.rounds:
        return None
    slow = np.reshape(baseline.samples_ms, (baseline.rounds, -1))  # [rounds, burst]
    fast = np.reshape(candidate.samples_ms, (candidate.rounds, -1))
    return percentiles(resampled_medians(slow) / resampled_medians(fast))
