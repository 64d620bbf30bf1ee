"""Dynamic batching, derived from the batch sweep of a report.

Preferred sizes: the tuned batch, and each batch in the sweep with more throughput than all smaller
ones.

Delay: the time that Triton may hold a request back until a batch of the largest preferred size b is
full. If b requests arrive together and run one after another, they are answered after
(b + 1) / 2 · t1 on average; in a batch, after the delay and tb. So a delay up to
(b + 1) / 2 · t1 - tb costs them nothing. A lone request waits in vain; therefore the delay is at
most tb.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optkit.facts.measurement import Latency
from optkit.road.packaging.triton.model_config import DynamicBatching


@dataclass(frozen=True)
class Batching:
    """`why`: how each value is known, in lines. `known`: whether the sweep gives a delay."""

    settings: DynamicBatching
    why: str
    known: bool


def batching(sweep: Sequence[Latency], tuned: int, largest: int, engine: str) -> Batching | None:
    """The settings for a model that takes batches of at most `largest`; None if it takes no more
    than one sample. `engine`: whose figures the sweep has."""
    if largest < 2:
        return None
    by_batch = {row.batch: row for row in sweep if row.batch <= largest}
    preferred = tuple(sorted({*_rising(by_batch), tuned} - {1}))
    said = f"{tuned} is the tuned batch" if tuned > 1 else "the tuned batch is 1"
    if rows := [f"{b}: {_figure(by_batch[b])}" for b in sorted(by_batch)]:
        said += f"; by batch, of {engine}: {', '.join(rows)}"
    one, full = by_batch.get(1), by_batch.get(preferred[-1]) if preferred else None
    if one is None or full is None:
        missing = 1 if one is None else preferred[-1] if preferred else tuned
        why = f"delay 0: the latency at batch {missing} is not known"
        return Batching(DynamicBatching(preferred), f"{said}\n{why}", known=False)
    gain = (full.batch + 1) / 2 * one.p50_ms - full.p50_ms
    delay = max(0, int(min(gain, full.p50_ms) * 1000))
    why = (
        f"delay {delay} us: min(t{full.batch}, ({full.batch} + 1) / 2 * t1 - t{full.batch}), "
        "if that is positive"
    )
    return Batching(DynamicBatching(preferred, delay), f"{said}\n{why}", known=True)


def _rising(by_batch: dict[int, Latency]) -> list[int]:
    """The batches with more throughput than all smaller ones."""
    best, rising = 0.0, []
    for batch in sorted(by_batch):
        if by_batch[batch].throughput > best:
            best = by_batch[batch].throughput
            rising.append(batch)
    return rising


def _figure(row: Latency) -> str:
    return f"{row.p50_ms:.3g} ms ({'; '.join([row.evidence, *row.marks])})"
