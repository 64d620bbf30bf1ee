"""Latency: interleaved rounds of every session in turn, so that drift of the host hits all alike.

    warm up each session by time
    round 1:  int8 int8 int8 … fp16 fp16 fp16 …
    round 2:  fp16 fp16 fp16 … int8 int8 int8 …      (order drawn from a fixed seed)
    …

A round is a burst of the same number of calls of each session; the first call of a burst finds the
caches as the other session left them and is not counted. One sample is the wall time of
`Session.run`, host to host, transfers included. Garbage collection is off meanwhile.
Callers open ONNX Runtime sessions with spinning off: idle spinning threads of one session slow the
other (up to five times where cores are few).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns

import numpy as np

from optkit.benchmarking.evidence import weaker
from optkit.benchmarking.intervals import (
    SEED,
    median_interval,
    percentiles,
    resampled_medians,
)
from optkit.measurement import Difference, Interval, Latency
from optkit.runtime import Evidence, Feed, Progress, Session

MIN_ROUNDS = 10
ROUNDS = 40  # aimed at within the time budget; the burst is sized for it
P99_RUNS = 1_000  # below this a p99 is one of the ten slowest runs: not reported
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
) -> dict[tuple[str, int], Latency]:
    """Time every session at every batch size; the key of a result is (name, batch).

    `seconds` is the budget of one batch size, shared by all sessions; at least MIN_ROUNDS rounds
    run whatever it says. `warmup_seconds` is per session and batch size. All sessions stay open
    together.
    """
    results: dict[tuple[str, int], Latency] = {}
    with ExitStack() as stack:
        opened = {name: stack.enter_context(make()) for name, make in sessions.items()}
        for index, batch in enumerate(batches):
            progress(f"timing batch {batch}", index / len(batches))
            feed = feed_for(batch)
            with _no_garbage_collection():
                calls = [_warm_up(session, feed, warmup_seconds) for session in opened.values()]
                burst = max(1, int(seconds * _NS_PER_S / ROUNDS / sum(calls)))
                times = _rounds(opened, feed, burst, int(seconds * _NS_PER_S))
            for name, rounds in times.items():
                results[name, batch] = summarize(rounds, batch)
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


def _warm_up(session: Session, feed: Feed, seconds: float) -> int:
    """Run for `seconds`, at least twice; returns the fastest call in nanoseconds."""
    fastest, calls = 0, 0
    start = perf_counter_ns()
    while calls < 2 or perf_counter_ns() - start < seconds * _NS_PER_S:
        taken = _burst(session, feed, 1)[0]
        fastest = min(fastest, taken) if calls else taken
        calls += 1
    return max(fastest, 1)


def _burst(session: Session, feed: Feed, calls: int) -> list[int]:
    times = []
    for _ in range(calls):
        start = perf_counter_ns()
        session.run(feed)
        times.append(perf_counter_ns() - start)
    return times


def _rounds(
    sessions: Mapping[str, Session], feed: Feed, burst: int, budget_ns: int
) -> dict[str, list[list[int]]]:
    """Per session: a list of rounds, each `burst` call times in nanoseconds."""
    rng = np.random.default_rng(SEED)
    names = list(sessions)
    times: dict[str, list[list[int]]] = {name: [] for name in names}
    start = perf_counter_ns()
    done = 0
    while done < MIN_ROUNDS or perf_counter_ns() - start < budget_ns:
        for position in rng.permutation(len(names)):
            session = sessions[names[position]]
            if burst > 1:
                session.run(feed)  # brings the caches back; not counted
            times[names[position]].append(_burst(session, feed, burst))
        done += 1
    return times


def summarize(rounds_ns: Sequence[Sequence[int]], batch: int) -> Latency:
    """Quantiles over the runs of all rounds (nanoseconds in), and the median's interval."""
    rounds = np.asarray(rounds_ns, dtype=np.float64) / _NS_PER_MS  # [rounds, burst]
    samples = rounds.ravel()
    p50, p90, p95, p99 = (float(q) for q in np.quantile(samples, (0.5, 0.9, 0.95, 0.99)))
    return Latency(
        evidence=Evidence.MEASURED,
        p50_ms=p50,
        batch=batch,
        throughput=batch * 1e3 / p50,
        p90_ms=p90,
        p95_ms=p95,
        p99_ms=p99 if samples.size >= P99_RUNS else None,
        min_ms=float(samples.min()),
        ci95_ms=median_interval(rounds),
        runs=samples.size,
        rounds=len(rounds_ns),
        samples_ms=tuple(samples.tolist()),
    )


def ratio(baseline: Latency, candidate: Latency) -> Difference:
    """Speedup: baseline median / candidate median, with its 95 % interval.

    Measured in the same rounds: bootstrap over rounds, both sides resampled together, which keeps
    the pairing and the correlation of neighbouring calls. Predicted on both sides: the extremes of
    the two bands. Otherwise no interval. The very same object on both sides is 1 exactly.
    """
    if baseline.batch != candidate.batch:
        raise ValueError(f"speedup across batch sizes {baseline.batch} and {candidate.batch}")
    value = baseline.p50_ms / candidate.p50_ms
    return Difference(
        value, _ratio_interval(baseline, candidate), weaker(baseline.evidence, candidate.evidence)
    )


def _ratio_interval(baseline: Latency, candidate: Latency) -> Interval | None:
    if candidate is baseline:
        return Interval(1.0, 1.0)
    if baseline.band is not None and candidate.band is not None:
        return Interval(
            baseline.band.low / candidate.band.high, baseline.band.high / candidate.band.low
        )
    if baseline.rounds is None or baseline.rounds != candidate.rounds:
        return None
    slow = np.reshape(baseline.samples_ms, (baseline.rounds, -1))  # [rounds, burst]
    fast = np.reshape(candidate.samples_ms, (candidate.rounds, -1))
    return percentiles(resampled_medians(slow) / resampled_medians(fast))
