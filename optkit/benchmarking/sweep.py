"""Which batch size: the knee of a sweep, and the best one under a limit on latency."""

from __future__ import annotations

from collections.abc import Sequence

from optkit.measurement import Latency


def knee(latencies: Sequence[Latency]) -> int:
    """The batch at which throughput over latency is largest: beyond it a batch costs more in
    latency, as a share, than it gains in throughput.

    This ratio is the "power" of Kleinrock 1979 (ICC'79, 43.1); its maximum is the knee of Jain 1991
    (The Art of Computer Systems Performance Analysis, 3.3). Where a call takes a + c·batch, that is
    batch = a / c: the samples take as long as the call's own cost.
    """
    return max(latencies, key=lambda one: one.throughput / one.p50_ms).batch


def best_under(latencies: Sequence[Latency], limit_ms: float) -> int | None:
    """The batch of the largest throughput among those whose latency surely keeps the limit: the
    whole 95 % interval of its median, or the whole band of a prediction. None: no batch does."""

    def longest(one: Latency) -> float:
        interval = one.ci95_ms or one.band
        return interval.high if interval else one.p50_ms

    kept = [one for one in latencies if longest(one) <= limit_ms]
    return max(kept, key=lambda one: one.throughput).batch if kept else None
