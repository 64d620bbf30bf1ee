"""A spool: samples checked against the model's inputs and kept on disk, read batch by batch.

    folder/00000.safetensors …   batches as they came, tensors "<batch>/<input>", "<batch>|labels"
    folder/index.json            written last: inputs, batch sizes, one sha256 per sample

Calibration and evaluation read only spools, so a source that yields nonsense is told of before any
work, and two sources that share samples are found by digest, whatever these are padded to. Memory
holds one shard while writing and one batch while reading.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optkit.data import identity, sequences
from optkit.data.checking import Checker, Item, count_of, fixed_batch, parted
from optkit.errors import InputRefused, IntegrityError
from optkit.runtimes import Progress
from optkit.store import storage_errors, write_durably
from optkit.tensors import Feed, TensorInfo, batched, count_samples, size_of

if TYPE_CHECKING:
    from optkit.recipe.inputs import InputSpec

SCHEMA = "optkit.spool/v1"
_INDEX = "index.json"
_EMBEDDED = "optkit.spool"  # the index in a single file's metadata; one key, so one byte order
_SHARD_BYTES = 64 << 20

Batch = tuple[Feed, np.ndarray | None]
"""What a spool yields: a feed and its labels, [batch, …], or None. The last batch of a model whose
batch is fixed may have fewer labels: the rows behind them fill it up, see `counting`."""


@dataclass(frozen=True)
class SpoolInfo:
    """What was written. `digest` covers samples and labels, whatever batches they came in."""

    samples: int
    batches: int
    bytes: int
    labelled: bool
    digest: str
    left_out: int = 0  # of an incomplete last batch, where the model's is fixed

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write(
    batches: Iterable[Item],
    path: Path,
    inputs: Sequence[TensorInfo],
    *,
    limit_samples: int | None,
    memory_bytes: int,
    progress: Progress,
    optional: Collection[str] = (),
    fill: bool = False,
) -> SpoolInfo:
    """Check and spool what `batches` yields, at most `limit_samples` samples, into folder `path`.

    Axis 0 of an input is the batch where the model has one: where its size is that of the first
    input's axis 0. Of a model whose batch size is fixed, whole batches are taken; an incomplete
    last one is left out, or with `fill` filled up by its own samples again, which have no labels
    and do not count. Axes named by `optional` may be empty; inputs that a feed lacks are filled in
    where `sequences` knows how.
    Raises InputRefused naming sample and input: a missing or unknown name, another dtype or shape,
    a value that is not finite, labels that do not fit, no samples at all. StorageError: disk full.
    """
    writer = _Writer(path, inputs, memory_bytes, optional, fill)
    for item in batches:
        feed, labels, slices = parted(item, writer.samples)
        left = None if limit_samples is None else limit_samples - writer.samples
        writer.add(feed, labels, slices, left)
        if limit_samples is None:
            progress(f"{writer.samples} samples", 0.0)
            continue
        progress(f"{writer.samples} of {limit_samples} samples", writer.samples / limit_samples)
        if writer.samples >= limit_samples:
            break
    return writer.finish()


class Spool:
    """Reads a spool. `len` counts samples; iterating yields (feed, labels) as they were written."""

    def __init__(self, path: Path) -> None:
        try:
            index = _index(path)
            if index["schema"] != SCHEMA:
                raise ValueError(index["schema"])
            self.inputs = tuple(
                TensorInfo(i["name"], i["dtype"], tuple(i["shape"])) for i in index["inputs"]
            )
            self.digest: str = index["digest"]
            self.metadata: dict[str, Any] = index["metadata"]
            self._digests: list[str] = index["digests"]
            self._rows: list[str] = index["rows"]  # the file each batch is in
            self.labelled: bool = index["labelled"]
            self._slices: list[str] = index.get("slices", [])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IntegrityError("not a spool of samples, or damaged", where=str(path)) from error
        if path.is_file():  # its name may be another one by now
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
        """The slice of each sample: what the source called it, else its label where that is one
        integer; none where there is neither."""
        if self._slices or not self.labelled:
            return list(self._slices)
        labels = np.concatenate([labels for _, labels in self._written() if labels is not None])
        plain = labels.ndim == 1 and labels.dtype.kind in "biu"
        return [str(label) for label in labels.tolist()] if plain else []

    def batches(self, size: int | None) -> Iterator[Batch]:
        """(feed, labels or None) in order, `size` samples each; None: as they were written.

        Samples of different shapes never meet in one batch, and the last batch may be smaller.
        Raises InputRefused when the model's batch axis is fixed at another size.
        """
        written = self._written()
        if size is None or self._accepted(size) == fixed_batch(self.inputs):
            return written
        return self._rebatched(written, size)

    def chosen(self, numbers: Collection[int]) -> Iterator[tuple[Feed, np.ndarray, list[str]]]:
        """Feed, labels and slices of those of the labelled samples, in their order, in batches of
        the model's own size where that is fixed."""
        names, wanted = self.slices(), frozenset(numbers)
        kept = iter([names[i] for i in sorted(wanted)] if names else ())
        picked = self._picked(wanted)
        fixed = fixed_batch(self.inputs)
        for feed, labels in picked if fixed is None else self._rebatched(picked, fixed):
            assert labels is not None
            yield feed, labels, list(islice(kept, len(labels)))

    def spread(self, most: int) -> Iterator[Feed]:
        """At most `most` samples at equal distances, one per feed; of a model whose batch is fixed
        whole batches. Only these are read from disk."""
        fixed = fixed_batch(self.inputs)
        if fixed is not None:
            for row in _spread(len(self._rows), max(most // fixed, 1)):
                yield self._part(row, None)
            return
        starts = np.cumsum([0, *self._sizes()])
        for number in _spread(len(self), most):
            row = int(np.searchsorted(starts, number, side="right")) - 1
            first = number - int(starts[row])
            yield self._part(row, slice(first, first + 1))

    def _sizes(self) -> list[int]:
        """The number of samples in each written batch, by the files' headers alone."""
        counted = next((info.name for info in self.inputs if info.name in self._batched), None)
        if counted is None:
            return [1] * len(self._rows)
        sizes: list[int] = []
        for row, file in self._files():
            sizes.append(file.get_slice(f"{row}/{counted}").get_shape()[0])
        return sizes

    def _part(self, row: int, samples: slice | None) -> Feed:
        """Some samples of a written batch, or (None) all of it."""
        file = _opened(self._folder / self._rows[row])
        return {
            info.name: file.get_slice(f"{row}/{info.name}")[samples]
            if samples is not None and info.name in self._batched
            else file.get_tensor(f"{row}/{info.name}")
            for info in self.inputs
        }

    def _picked(self, wanted: Collection[int]) -> Iterator[Batch]:
        first = 0
        for feed, labels in self._written():
            assert labels is not None
            rows = [row for row in range(len(labels)) if first + row in wanted]
            first += len(labels)
            if rows:
                part = {n: a[rows] if n in self._batched else a for n, a in feed.items()}
                yield part, labels[rows]

    def feed(self, size: int) -> Feed:
        """One feed of exactly `size` samples, the first ones again where there are fewer."""
        feed, _ = next(self._rebatched(self._written(), self._accepted(size)))
        turns = np.arange(size) % self._count(feed)
        return {n: a[turns] if n in self._batched else a for n, a in feed.items()}

    def to_file(self, path: Path, metadata: Mapping[str, Any]) -> None:
        """Write everything, and some JSON to go with it, into one file that `Spool` reads too.

        Holds all samples in memory. Raises StorageError.
        """
        arrays: dict[str, np.ndarray] = {}
        for row, (feed, labels) in enumerate(self):
            arrays |= _arrays(row, feed, labels)
        rows = [path.name] * len(self._rows)
        index = _index_json(
            self.inputs, self.labelled, self.digest, rows, self._digests, self._slices, metadata
        )
        _save(arrays, path, {_EMBEDDED: index})

    def _files(self) -> Iterator[tuple[int, Any]]:
        """Each batch's number and the opened file that it is in."""
        shard = ""
        file: Any = None
        for row, name in enumerate(self._rows):
            if name != shard:
                shard, file = name, _opened(self._folder / name)
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
                f"the model's batch size is fixed at {fixed}, {size} was asked for",
                hint=f"ask for {fixed}, or export the model with a named batch axis",
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
        part = {n: a[start:stop] if n in self._batched else a for n, a in feed.items()}
        return part, None if labels is None else labels[start:stop]

    def _fit(self, one: Feed, other: Feed) -> bool:
        """Whether samples of the two may stand in one batch."""
        return all(
            one[n].shape[1:] == other[n].shape[1:]
            if n in self._batched
            else np.array_equal(one[n], other[n])
            for n in one
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
    """At most `most` of so many numbers, at equal distances."""
    taken = min(count, most)
    return [turn * count // taken for turn in range(taken)]


def counting(found: Feed, feed: Feed, labels: np.ndarray | None) -> Feed:
    """Of what belongs to a batch (its feed, or outputs for it) the samples that count: all but the
    rows that fill up a fixed batch, which have no labels."""
    whole = count_samples(feed)
    if labels is None or len(labels) == whole:
        return found
    return {n: a[: len(labels)] if a.shape[:1] == (whole,) else a for n, a in found.items()}


def overlap(a: Spool, b: Spool) -> list[tuple[int, int]]:
    """(index in a, first index in b) of every sample of `a` that is also in `b`."""
    where: dict[str, int] = {}
    for index, digest in enumerate(b.digests()):
        where.setdefault(digest, index)
    return [(i, where[digest]) for i, digest in enumerate(a.digests()) if digest in where]


def random_feed(specs: Sequence[InputSpec], sizes: Mapping[str, int], seed: int) -> Feed:
    """Seeded random values for each input at those axis sizes, the same on every machine.

    Floats are standard normal, or uniform in the input's range; integers uniform in the range, both
    ends included, else 0 or 1. A mask and positions are such as a tokenizer would give.
    """
    random = np.random.default_rng(seed)
    feed = {}
    for spec in specs:
        shape = tuple(size_of(dim, sizes) for dim in spec.info.shape)
        dtype = np.dtype(spec.info.dtype)
        values: np.ndarray
        if dtype.kind != "f":
            low, high = spec.range or (0, 1)
            values = random.integers(int(low), int(high), shape, endpoint=True)
        elif spec.range is None:
            values = np.asarray(random.standard_normal(shape))
        else:
            values = np.asarray(random.uniform(*spec.range, shape))
        feed[spec.info.name] = np.asarray(values, dtype)
    return sequences.plausible(feed)


class _Writer:
    """Holds the current shard; `finish` writes the index, without which there is no spool."""

    def __init__(
        self,
        path: Path,
        inputs: Sequence[TensorInfo],
        memory_bytes: int,
        optional: Collection[str],
        fill: bool,
    ) -> None:
        self.samples = 0
        self._left_out = 0
        self._fill = fill
        self._path = path
        self._checker = Checker(inputs, optional)
        self._memory = memory_bytes
        self._shard: dict[str, np.ndarray] = {}
        self._held = 0  # bytes in it
        self._shards = 0
        self._bytes = 0
        self._rows: list[str] = []
        self._digests: list[str] = []
        self._exact: list[str] = []
        self._labels = hashlib.sha256()
        self._slices: list[str] = []

    def add(self, given: Mapping[str, Any], labels: Any, slices: Any, left: int | None) -> None:
        fixed, own = self._checker.fixed, self._checker.batched
        feed, count = self._checker.feed(given, self.samples)
        tags = self._checker.labels(labels, count, self.samples)
        names = self._checker.slices(slices, count, self.samples)
        if fixed is not None and count < fixed and not self._fill:
            self._left_out = count
            return
        if left is not None and left < count and fixed is None:
            feed = {n: a[:left] if n in own else a for n, a in feed.items()}
            tags, count = None if tags is None else tags[:left], left
        row = len(self._rows)
        for sample in islice(identity.samples(feed, own), count):
            self._note(sample)
        arrays = _arrays(row, feed, tags)
        self._slices += names[:count]
        if tags is not None:
            self._labels.update(tags.tobytes())
        size = sum(a.nbytes for a in arrays.values())
        if size > self._memory:
            raise InputRefused(
                f"a batch of {size} bytes is over the memory budget of {self._memory}",
                where=f"sample {self.samples}",
                hint="yield smaller batches, or raise --memory",
            )
        # half: the library holds what it writes once more
        if self._shard and self._held + size > min(self._memory // 2, _SHARD_BYTES):
            self._flush()
        self._held += size
        self._shard |= arrays
        self._rows.append(f"{self._shards:05d}.safetensors")
        self._bytes += size
        self.samples += count

    def finish(self) -> SpoolInfo:
        checker = self._checker
        if not self.samples and self._left_out:
            raise InputRefused(
                f"fewer samples ({self._left_out}) than the model's fixed batch of {checker.fixed}",
                hint="give more data, or export the model with a named batch axis",
            )
        if not self.samples:
            raise InputRefused(
                "the source yielded no samples", hint="check its arguments and its data"
            )
        self._flush()
        content = [self._exact, checker.label_kind, self._labels.hexdigest()]
        content += [self._slices] if self._slices else []
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        inputs, labelled = tuple(checker.inputs.values()), bool(checker.labelled)
        index = _index_json(inputs, labelled, digest, self._rows, self._digests, self._slices, {})
        with storage_errors(self._path):
            write_durably(self._path / _INDEX, index.encode())
        return SpoolInfo(
            self.samples, len(self._rows), self._bytes, labelled, digest, self._left_out
        )

    def _note(self, sample: Feed) -> None:
        exact, bare = identity.digest(sample), identity.unpadded(sample, self._checker.inputs)
        self._exact.append(exact)
        self._digests.append(exact if bare is sample else identity.digest(bare))

    def _flush(self) -> None:
        with storage_errors(self._path):
            self._path.mkdir(parents=True, exist_ok=True)
        _save(self._shard, self._path / f"{self._shards:05d}.safetensors")
        self._shard, self._held, self._shards = {}, 0, self._shards + 1


def _arrays(row: int, feed: Feed, labels: np.ndarray | None) -> dict[str, np.ndarray]:
    """One batch as it is kept. Copies: a source may fill the same buffer again, and slices are not
    contiguous."""
    named = {f"{row}/{name}": array for name, array in feed.items()}
    if labels is not None:
        named[f"{row}|labels"] = labels
    return {name: np.array(array, order="C") for name, array in named.items()}


def _index_json(
    inputs: Sequence[TensorInfo],
    labelled: bool,
    digest: str,
    rows: Sequence[str],
    digests: Sequence[str],
    slices: Sequence[str],
    metadata: Mapping[str, Any],
) -> str:
    return json.dumps(
        {
            "schema": SCHEMA, "inputs": [asdict(info) for info in inputs], "labelled": labelled,
            "digest": digest, "rows": rows, "digests": digests, "slices": slices,
            "metadata": dict(metadata),
        }
    )  # fmt: skip


def _index(path: Path) -> dict[str, Any]:
    """The index of a folder, or the one inside a single file."""
    if not path.is_file():
        found = json.loads((path / _INDEX).read_bytes())
    else:
        found = json.loads(_opened(path).metadata()[_EMBEDDED])
    if not isinstance(found, dict):
        raise ValueError(type(found))
    return found


def _opened(path: Path) -> Any:
    from safetensors import safe_open

    try:
        return safe_open(path, framework="numpy")
    except Exception as error:  # the library's own class, or an OSError
        raise IntegrityError("a file of samples is damaged", where=str(path)) from error


def _save(
    arrays: dict[str, np.ndarray], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """`save_file` with StorageErrors: the library hides an OSError in a class of its own."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    with storage_errors(path):
        try:
            save_file(arrays, path, metadata)
        except SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))
            number = int(code[1]) if code else errno.EIO
            raise OSError(number, os.strerror(number), str(path)) from error
