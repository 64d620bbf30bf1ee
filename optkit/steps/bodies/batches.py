"""The batches of a step that runs a graph on all samples, or on a part of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain, dropwhile, takewhile
from pathlib import Path
from typing import NamedTuple

from optkit.benchmarking.partial_results import Kept
from optkit.data.spool import Batch, Spool
from optkit.execute.step import Input, Progress, Shards
from optkit.tensors import count_samples


def begun(
    step: Shards, samples: Input, batch: int | None, progress: Progress
) -> tuple[Iterator[Batch], Kept]:
    """What of the samples, or of a part of them, is still to be run; and what a killed run of it
    has left."""
    counted = Counted(samples.path, batch, progress, step.shard or (0, 1))
    kept = Kept(step.checkpoint, counted.first)
    return counted.rest(len(kept.scores)), kept


def joined(step: Shards) -> Kept | None:
    """What all parts left, where they are done; None: there are none."""
    return Kept.joined([part.path for part in step.parts.values()]) if step.parts else None


class Counted:
    """Batches of a spool that report how far they are and how long the rest will take at this rate.

    `shard` (i, n): those of the i-th of n parts, to which a batch belongs by its first sample; a
    part may be empty. `first`: the number of its first sample.
    """

    def __init__(
        self,
        path: Path,
        batch: int | None,
        progress: Progress,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        spool, (index, count) = Spool(path), shard
        start, self._end = (len(spool) * i // count for i in (index, index + 1))
        self._progress = progress
        self._spans = dropwhile(lambda span: span.start < start, _spans(spool.batches(batch)))
        self._next = next(self._spans, None)
        self.first = self._end if self._next is None else self._next.start

    def rest(self, done: int) -> Iterator[Batch]:
        """All but the first `done`; once."""
        before, started = self.first, time.monotonic()
        own = takewhile(lambda span: span.start < self._end, self._all())
        for index, span in enumerate(own):
            if index < done:
                before, started = span.stop, time.monotonic()
                continue
            yield span.batch
            end = max(self._end, span.stop)
            rate = (span.stop - before) / max(time.monotonic() - started, 1e-9)
            seen, total = span.stop - self.first, end - self.first
            left = (end - span.stop) / rate
            self._progress(
                f"{seen} of {total} samples, {rate:.3g}/s, {left:.0f} s left", seen / total
            )

    def _all(self) -> Iterator[_Span]:
        return self._spans if self._next is None else chain([self._next], self._spans)


class _Span(NamedTuple):
    """A batch, and the numbers of its first sample and of the one behind it."""

    start: int
    stop: int
    batch: Batch


def _spans(batches: Iterable[Batch]) -> Iterator[_Span]:
    stop = 0
    for feed, labels in batches:
        start, stop = stop, stop + (count_samples(feed) if labels is None else len(labels))
        yield _Span(start, stop, (feed, labels))
