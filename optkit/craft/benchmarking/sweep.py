"""The choice of a batch size: the knee of a sweep, and the best one under a limit on latency."""

from __future__ import annotations

from collections.abc import Sequence

from optkit.facts.measurement import Latency


def knee(latencies: Sequence[Latency]) -> int:
    """The batch size with the largest ratio of throughput to latency. Beyond it, latency grows by a
    larger factor than throughput.

    This ratio is the "power" of Kleinrock 1979 (ICC'79, 43.1); its maximum is the knee of Jain 1991
    (The Art of Computer Systems Performance Analysis, 3.3). If a call takes a + c·batch, the knee
    is batch = a / c: the samples then take as long as the fixed cost of a call.
    """
    return max(latencies, key=lambda latency: latency.throughput / latency.p50_ms).batch


def best_under(latencies: Sequence[Latency], limit_ms: float) -> int | None:
    """The batch size with the largest throughput among those whose latency certainly keeps the
    limit: with the whole 95 % interval of the median, or the whole band of a prediction. None if no
    batch size does."""

    def longest(latency: Latency) -> float:
        interval = latency.ci95_ms or latency.band
        return interval.high if interval else latency.p50_ms

    kept = [latency for latency in latencies if longest(latency) <= limit_ms]
    return max(kept, key=lambda latency: latency.throughput).batch if kept else None
