"""Divides feeds into parts that fit in memory.

The number of samples that run at once follows from the size of one sample's values. A cut depends
only on the feeds, the budget and the number of the sample, so a run that continues after a kill
makes the same cuts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed, batched, count_samples
from optkit.ground.data.spool import Spool
from optkit.ground.runtimes import Session
from optkit.ground.statistics import CHUNK

# Bytes in use at the peak, per byte of tapped values: the runtime's buffer, its copy for numpy,
# other inner values that are alive, and the previous part, which is still being counted.
PEAK = 4
_ENOUGH = 80 << 20  # bytes; larger parts take little less time per sample, and more memory


class SpooledFeeds:
    """The feeds of a spool, `size` samples each, iterated as often as passes need.

    `shard` (i, n): only the i-th of n parts. Parts end where a feed and a chunk of second moments
    end, so their statistics merge to the bits of a single run; a part may be empty. `first`: number
    of its first sample; `samples`: how many it has.
    """

    def __init__(self, spool: Spool, size: int | None, shard: tuple[int, int] = (0, 1)) -> None:
        self._spool, self._size = spool, size
        self.first, self.samples, self._feeds = 0, len(spool), slice(None)
        index, count = shard
        if count > 1:
            ends = [0, *accumulate(count_samples(feed) for feed, _ in spool.batches(size))]
            cuts = [end for end in ends[:-1] if end % CHUNK == 0] + [ends[-1]]
            self.first, last = (_cut(cuts, len(spool) * i // count) for i in (index, index + 1))
            self.samples = last - self.first
            self._feeds = slice(ends.index(self.first), ends.index(last))

    def __iter__(self) -> Iterator[Feed]:
        feeds = (feed for feed, _ in self._spool.batches(self._size))
        return islice(feeds, self._feeds.start, self._feeds.stop)


def _cut(cuts: Sequence[int], place: int) -> int:
    """The first cut at this place or after it."""
    return next(cut for cut in cuts if cut >= place)


@dataclass
class Cutter:
    """`memory_bytes`: the budget for everything. `reserved`: bytes of it that are not for the
    values of a part."""

    session: Session
    memory_bytes: int
    reserved: int = 0
    largest: int = 0  # elements of the largest sample so far
    need: int = 0  # bytes per unit of it
    unit: int = 1  # the number of samples that must run together
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of a unit's values

    def __post_init__(self) -> None:
        self.batched: Collection[str] = batched(self.session.inputs)
        dynamic = any(
            isinstance(info.shape[0], str)
            for info in self.session.inputs
            if info.name in self.batched
        )
        self._fixed = not dynamic

    @property
    def sizes(self) -> list[int]:
        """The values that determine the cuts. Set them to make the same cuts as another run."""
        return [self.memory_bytes, self.reserved, self.largest, self.need, self.unit]

    @sizes.setter
    def sizes(self, sizes: list[int]) -> None:
        self.memory_bytes, self.reserved, self.largest, self.need, self.unit = sizes

    def count(self, feed: Feed) -> int:
        """Samples in a feed."""
        return next((len(feed[name]) for name in self.batched), 1)

    def parts(self, feed: Feed, number: int, skip: int) -> Iterator[Feed]:
        """The feed's parts, less its first `skip` samples. `number`: that of its first sample."""
        rows = self.count(feed)
        start = skip
        while start < rows:
            border = rows if self._fixed else start + CHUNK - (number + start) % CHUNK
            stop = min(start + self.limit, rows, border)
            yield self.cut(feed, start, stop)
            start = stop

    @property
    def limit(self) -> int:
        """The number of samples that may run at once."""
        free = min(self.memory_bytes - self.reserved, max(_ENOUGH, self.need))
        return self.unit * max(free // max(self.need, 1), 1)

    def cut(self, feed: Feed, start: int, stop: int) -> Feed:
        return {n: a[start:stop] if n in self.batched else a for n, a in feed.items()}

    def run(self, feed: Feed) -> Feed:
        """The outputs of a feed, in as many runs as the memory requires."""
        self.measure(feed)
        runs = [self.session.run(part) for part in self.parts(feed, 0, 0)]
        if len(runs) == 1:
            return runs[0]
        return {name: np.concatenate([found[name] for found in runs]) for name in runs[0]}

    def measure(self, feed: Feed) -> None:
        """Update the size of a sample if this feed's samples are larger than all before."""
        size = sum(array.size for array in feed.values()) // max(self.count(feed), 1)
        if size <= self.largest:
            return
        self.unit = self.count(feed) if self._fixed else 1
        first = self.cut(feed, 0, self.unit)
        outputs = self.session.run(first)
        self.largest, self.need = size, PEAK * sum(value.nbytes for value in outputs.values())
        self.shapes = {name: value.shape for name, value in (first | outputs).items()}
        if self.need > self.memory_bytes:
            fixed = self.unit > 1
            what = f"the model's fixed batch of {self.unit}" if fixed else "one sample"
            needed, allowed = self.need >> 20, self.memory_bytes >> 20
            raise InputRefused(
                f"{what} needs about {needed} MiB of memory, {allowed} are allowed",
                where="calibration",
                hint="raise --memory" + (", or export a dynamic batch axis" if fixed else ""),
            )
