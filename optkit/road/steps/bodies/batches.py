"""The batches of a step that runs a graph on all samples or on a part of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain, dropwhile, takewhile
from pathlib import Path
from typing import NamedTuple

from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.tensors import count_samples
from optkit.ground.data.spool import Batch, Spool
from optkit.ground.execute.step import Progress, Shards, StepInput


def begun(
    step: Shards, samples: StepInput, batch: int | None, progress: Progress
) -> tuple[Iterator[Batch], PartialScores]:
    """The batches that are still to be run, and the results that a killed run has saved."""
    counted = CountedBatches(samples.path, batch, progress, step.shard or (0, 1))
    kept = PartialScores(step.checkpoint, counted.first)
    return counted.rest(len(kept.scores)), kept


def joined(step: Shards) -> PartialScores | None:
    """The results of all parts together; None if the step has no parts."""
    return PartialScores.joined([part.path for part in step.parts.values()]) if step.parts else None


class CountedBatches:
    """Batches of a spool that report their progress and the time that is left at the present rate.

    `shard` (i, n): the batches of the i-th of n parts. A batch belongs to the part of its first
    sample; a part may be empty. `first`: the number of the part's first sample.
    """

    def __init__(
        self, path: Path, batch: int | None, progress: Progress, shard: tuple[int, int] = (0, 1)
    ) -> None:
        spool, (index, count) = Spool(path), shard
        start, self._end = (len(spool) * i // count for i in (index, index + 1))
        self._progress = progress
        self._spans = dropwhile(lambda span: span.start < start, _spans(spool.batches(batch)))
        self._next = next(self._spans, None)
        self.first = self._end if self._next is None else self._next.start

    def rest(self, done: int) -> Iterator[Batch]:
        """All batches but the first `done`. It can be called once."""
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
    """A batch, with the number of its first sample and of the sample after its last one."""

    start: int
    stop: int
    batch: Batch


def _spans(batches: Iterable[Batch]) -> Iterator[_Span]:
    stop = 0
    for feed, labels in batches:
        start, stop = stop, stop + (count_samples(feed) if labels is None else len(labels))
        yield _Span(start, stop, (feed, labels))
