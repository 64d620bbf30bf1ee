"""A spool: samples that were checked against the model's inputs and stored on disk, read batch by
batch.

Calibration and evaluation read only spools. Samples that two sources share are found by digest,
with any padding. Only one batch is in memory. `spool_writer` writes spools, and `spool_file`
defines their format on disk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed, batched, count_samples
from optkit.ground.data import spool_file
from optkit.ground.data.checking import count_of, fixed_batch, rows_of
from optkit.ground.data.spool_file import Index

Batch = tuple[Feed, np.ndarray | None]
"""The items of a spool: a feed and its labels, [batch, …], or None. If the batch of the model is
fixed, the last batch may have fewer labels: the rows without labels only fill it up, see
`counting`."""
Chosen = tuple[Feed, np.ndarray | None, list[str], list[str]]
"""As a Batch, with the slice and the group of each sample, if the spool has them."""


class Spool:
    """Reads a spool. `len` counts samples; iteration yields (feed, labels) in the batches as they
    were written."""

    def __init__(self, path: Path) -> None:
        index = Index.read(path)
        self.inputs = index.inputs
        self.digest = index.digest
        self.metadata = index.metadata
        self.labelled = index.labelled
        self._digests, self._rows = index.digests, index.rows
        self._slices, self._groups = index.slices, index.groups
        if path.is_file():  # the folder may have another name later
            self._rows = [path.name] * len(self._rows)
        self._folder = path if path.is_dir() else path.parent
        self._batched = batched(self.inputs)

    def __len__(self) -> int:
        return len(self._digests)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches(None)

    def digests(self) -> list[str]:
        """One sha256 per sample without its padding: see `identity`."""
        return list(self._digests)

    def slices(self) -> list[str]:
        """The slice of each sample: the one from the source, otherwise its label if that is one
        integer; empty if there is neither."""
        if self._slices or not self.labelled:
            return list(self._slices)
        labels = np.concatenate([labels for _, labels in self._written() if labels is not None])
        plain = labels.ndim == 1 and labels.dtype.kind in "biu"
        return [str(label) for label in labels.tolist()] if plain else []

    def groups(self) -> list[str]:
        """The group of each sample, from the source; empty if it named none."""
        return list(self._groups)

    def batches(self, size: int | None) -> Iterator[Batch]:
        """(feed, labels or None) in order, `size` samples each; None: as they were written.

        Samples of different shapes never meet in one batch, and the last batch may be smaller.
        Raises InputRefused when the model's batch axis is fixed at another size.
        """
        written = self._written()
        if size is None or self._accepted(size) == fixed_batch(self.inputs):
            return written
        return self._rebatched(written, size)

    def chosen(self, numbers: Collection[int]) -> Iterator[Chosen]:
        """Feed, labels or None, slices and groups of some of the samples, in their order, in
        batches of the model's size if that is fixed."""
        wanted = frozenset(numbers)
        slices, groups = (
            iter([names[i] for i in sorted(wanted)] if names else ())
            for names in (self.slices(), self.groups())
        )
        picked = self._picked(wanted)
        fixed = fixed_batch(self.inputs)
        for feed, labels in picked if fixed is None else self._rebatched(picked, fixed):
            count = self._count(feed) if labels is None else len(labels)
            yield feed, labels, list(islice(slices, count)), list(islice(groups, count))

    def spread(self, most: int) -> Iterator[Feed]:
        """At most `most` samples at equal distances, one per feed; for a model with a fixed batch,
        whole batches. Only these are read from disk."""
        fixed = fixed_batch(self.inputs)
        if fixed is not None:
            for row in _spread(len(self._rows), max(most // fixed, 1)):
                yield self._part(row, None)
            return
        for number in _spread(len(self), most):
            yield self._sample(number)

    def varied(self, most: int) -> Iterator[Feed]:
        """As `spread`, with the smallest and the largest sample among them."""
        if fixed_batch(self.inputs) is not None:
            yield from self.spread(most)
            return
        for number in _varied(np.repeat(self._bytes(), self._sizes()), most):
            yield self._sample(number)

    def _sample(self, number: int) -> Feed:
        starts = np.cumsum([0, *self._sizes()])
        row = int(np.searchsorted(starts, number, side="right")) - 1
        first = number - int(starts[row])
        return self._part(row, slice(first, first + 1))

    def _bytes(self) -> list[int]:
        """The bytes of one sample of each written batch, from the headers of the files."""
        return [
            sum(
                prod(file.get_slice(f"{row}/{info.name}").get_shape()[info.name in self._batched :])
                * np.dtype(info.dtype).itemsize
                for info in self.inputs
            )
            for row, file in self._files()
        ]

    def _sizes(self) -> list[int]:
        """The number of samples in each written batch, from the headers of the files."""
        counted = next((info.name for info in self.inputs if info.name in self._batched), None)
        if counted is None:
            return [1] * len(self._rows)
        return [file.get_slice(f"{row}/{counted}").get_shape()[0] for row, file in self._files()]

    def _part(self, row: int, samples: slice | None) -> Feed:
        """Some samples of a written batch, or (None) all of it."""
        file = spool_file.opened(self._folder / self._rows[row])
        return {
            info.name: file.get_slice(f"{row}/{info.name}")[samples]
            if samples is not None and info.name in self._batched
            else file.get_tensor(f"{row}/{info.name}")
            for info in self.inputs
        }

    def _picked(self, wanted: Collection[int]) -> Iterator[Batch]:
        first = 0
        for feed, labels in self._written():
            count = self._count(feed) if labels is None else len(labels)
            rows = [row for row in range(count) if first + row in wanted]
            first += count
            if rows:
                picked = rows_of(feed, self._batched, rows)
                yield picked, None if labels is None else labels[rows]

    def feed(self, size: int) -> Feed:
        """One feed of exactly `size` samples; if there are fewer, the first ones are repeated."""
        feed, _ = next(self._rebatched(self._written(), self._accepted(size)))
        return self.filled(feed, size)

    def filled(self, feed: Feed, size: int) -> Feed:
        """Exactly `size` samples of a feed; if it has fewer, the first ones are repeated."""
        return rows_of(feed, self._batched, np.arange(size) % self._count(feed))

    def to_file(self, path: Path, metadata: Mapping[str, object]) -> None:
        """Write all samples, and additional JSON, into one file that `Spool` also reads.

        All samples are in memory. Raises StorageError.
        """
        arrays: dict[str, np.ndarray] = {}
        for row, (feed, labels) in enumerate(self):
            arrays |= spool_file.arrays(row, feed, labels)
        rows = [path.name] * len(self._rows)
        index = Index(
            self.inputs,
            self.labelled,
            self.digest,
            rows,
            self._digests,
            self._slices,
            metadata,
            self._groups,
        )
        spool_file.save(arrays, path, {spool_file.EMBEDDED: index.to_json()})

    def _files(self) -> Iterator[tuple[int, Any]]:
        """The number of each batch, and the opened file with it."""
        shard = ""
        file: Any = None
        for row, name in enumerate(self._rows):
            if name != shard:
                shard, file = name, spool_file.opened(self._folder / name)
            yield row, file

    def _written(self) -> Iterator[Batch]:
        for row, file in self._files():
            feed = {i.name: file.get_tensor(f"{row}/{i.name}") for i in self.inputs}
            yield feed, file.get_tensor(f"{row}|labels") if self.labelled else None

    def _accepted(self, size: int) -> int:
        fixed = fixed_batch(self.inputs)
        if size < 1:
            raise InputRefused(f"no batch has {size} samples")
        if fixed is not None and size != fixed:
            raise InputRefused(
                f"the model's batch size is fixed at {fixed}, {size} was requested",
                hint=f"request {fixed}, or export the model with a named batch axis",
            )
        return size

    def _rebatched(self, written: Iterator[Batch], size: int) -> Iterator[Batch]:
        waiting: list[Batch] = []  # together fewer than `size`
        held = 0
        for feed, labels in written:
            if waiting and not self._fit(waiting[-1][0], feed):
                yield self._joined(waiting)
                waiting, held = [], 0
            start, count = 0, self._count(feed)
            while held + count - start >= size:
                stop = start + size - held
                yield self._joined([*waiting, self._cut(feed, labels, start, stop)])
                waiting, held, start = [], 0, stop
            if start < count:
                waiting.append(self._cut(feed, labels, start, count))
                held += count - start
        if waiting:
            yield self._joined(waiting)

    def _count(self, feed: Feed) -> int:
        return count_of(feed, self._batched)

    def _cut(self, feed: Feed, labels: np.ndarray | None, start: int, stop: int) -> Batch:
        rows = slice(start, stop)
        part = rows_of(feed, self._batched, rows)
        return part, None if labels is None else labels[rows]

    def _fit(self, a: Feed, b: Feed) -> bool:
        """Whether samples of both may be in one batch."""
        return all(
            a[n].shape[1:] == b[n].shape[1:] if n in self._batched else np.array_equal(a[n], b[n])
            for n in a
        )

    def _joined(self, parts: Sequence[Batch]) -> Batch:
        feed, labels = parts[0]
        if len(parts) == 1:
            return feed, labels
        joined = {
            n: np.concatenate([part[n] for part, _ in parts]) if n in self._batched else a
            for n, a in feed.items()
        }
        tags = [labels for _, labels in parts if labels is not None]
        return joined, np.concatenate(tags) if tags else None


def _spread(count: int, most: int) -> list[int]:
    """At most `most` of this many numbers, at equal distances."""
    taken = min(count, most)
    return [turn * count // taken for turn in range(taken)]


def varied(samples: Sequence[Feed], most: int) -> list[Feed]:
    """At most `most` of these samples, with the smallest and the largest one among them."""
    sizes = [sum(array.nbytes for array in one.values()) for one in samples]
    return [samples[number] for number in _varied(np.array(sizes), most)]


def _varied(sizes: np.ndarray, most: int) -> list[int]:
    """The numbers of the smallest and the largest sample, and others at equal distances."""
    if not len(sizes):
        return []
    ends = {int(sizes.argmin()), int(sizes.argmax())}
    others = [number for number in _spread(len(sizes), most) if number not in ends]
    return sorted({*ends, *others[: most - len(ends)]})


def counting(values: Feed, feed: Feed, labels: np.ndarray | None) -> Feed:
    """The samples that count in the arrays of a batch (its feed, or outputs for it): all except the
    rows that fill up a fixed batch, which have no labels."""
    whole = count_samples(feed)
    if labels is None or len(labels) == whole:
        return values
    return {n: a[: len(labels)] if a.shape[:1] == (whole,) else a for n, a in values.items()}


def overlap(a: Spool, b: Spool) -> list[tuple[int, int]]:
    """(index in a, first index in b) of every sample of `a` that is also in `b`."""
    where: dict[str, int] = {}
    for index, digest in enumerate(b.digests()):
        where.setdefault(digest, index)
    return [(i, where[digest]) for i, digest in enumerate(a.digests()) if digest in where]
