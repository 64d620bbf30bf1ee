"""Checks samples against the model's inputs and writes them into a spool.

So a source with invalid samples is refused before any other work. Only one shard is in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.data import identity, spool_file
from optkit.ground.data.checking import Checker, Given, Item, parted, rows_of
from optkit.ground.data.spool_file import Index
from optkit.ground.runtimes import Progress
from optkit.ground.store import storage_errors, write_durably

_SHARD_BYTES = 64 << 20


@dataclass(frozen=True)
class SpoolInfo:
    """The written spool. `digest` covers samples and labels, independent of their batches;
    `not_finite`: inputs with NaN or infinities, and the first sample with them."""

    samples: int
    batches: int
    bytes: int
    labelled: bool
    digest: str
    left_out: int = 0  # of an incomplete last batch, if the batch of the model is fixed
    not_finite: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
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
    """Check the items of `batches` and write them, at most `limit_samples` samples, into folder
    `path`.

    Axis 0 of an input is the batch if the model has one: if its size is that of the first input's
    axis 0. If the batch size of the model is fixed, only complete batches are written; an
    incomplete last batch is left out, or with `fill` completed with its own samples, which then
    have no labels and do not count. Axes in `optional` may be empty; `sequences` completes inputs
    that a feed lacks, if it can.

    Raises InputRefused with sample and input: a missing or unknown name, another dtype or shape,
    labels that do not fit, no samples at all. StorageError: disk full.
    """
    writer = _Writer(path, inputs, memory_bytes, optional, fill)
    for item in batches:
        feed, labels, slices, groups = parted(item, writer.samples)
        left = None if limit_samples is None else limit_samples - writer.samples
        writer.add(feed, labels, {"slices": slices, "groups": groups}, left)
        if limit_samples is None:
            progress(f"{writer.samples} samples", 0.0)
            continue
        progress(f"{writer.samples} of {limit_samples} samples", writer.samples / limit_samples)
        if writer.samples >= limit_samples:
            break
    return writer.finish()


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
        self._named: dict[str, list[str]] = {"slices": [], "groups": []}

    def add(
        self, given: Given, labels: object, named: Mapping[str, object], left: int | None
    ) -> None:
        """Add a batch. `named`: "slices" and "groups" of its samples. If the batch of the model is
        not fixed, at most `left` of its samples are added."""
        fixed, batched = self._checker.fixed, self._checker.batched
        feed, count = self._checker.feed(given, self.samples)
        tags = self._checker.labels(labels, count, self.samples)
        names = {
            what: self._checker.names(what, given, count, self.samples)
            for what, given in named.items()
        }
        if fixed is not None and count < fixed and not self._fill:
            self._left_out = count
            return
        if left is not None and left < count and fixed is None:
            feed = rows_of(feed, batched, slice(left))
            tags, count = None if tags is None else tags[:left], left
        for sample in islice(identity.samples(feed, batched), count):
            self._note(sample)
        for what, own in names.items():
            self._named[what] += own[:count]
        if tags is not None:
            self._labels.update(tags.tobytes())
        self._hold(spool_file.arrays(len(self._rows), feed, tags))
        self.samples += count

    def _hold(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add a batch to the current shard, or as the first one of the next shard."""
        size = sum(array.nbytes for array in arrays.values())
        if size > self._memory:
            raise InputRefused(
                f"a batch of {size} bytes exceeds the memory budget of {self._memory}",
                where=f"sample {self.samples}",
                hint="yield smaller batches, or raise --memory",
            )
        # half, because the library holds a copy of what it writes
        if self._shard and self._held + size > min(self._memory // 2, _SHARD_BYTES):
            self._flush()
        self._held += size
        self._shard |= arrays
        self._rows.append(f"{self._shards:05d}.safetensors")
        self._bytes += size

    def finish(self) -> SpoolInfo:
        checker = self._checker
        if not self.samples and self._left_out:
            raise InputRefused(
                f"there are fewer samples ({self._left_out}) than the model's fixed batch of "
                f"{checker.fixed}",
                hint="give more data, or export the model with a named batch axis",
            )
        if not self.samples:
            hint = (
                "check its arguments and its data; what was read before, such as an iterator, "
                "gives nothing the second time"
            )
            raise InputRefused("the source yielded no samples", hint=hint)
        self._flush()
        content: list[object] = [self._exact, checker.label_kind, self._labels.hexdigest()]
        slices, groups = self._named["slices"], self._named["groups"]
        content += [slices] if slices else []
        content += [{"groups": groups}] if groups else []
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        inputs, labelled = tuple(checker.inputs.values()), bool(checker.labelled)
        index = Index(inputs, labelled, digest, self._rows, self._digests, slices, groups=groups)
        with storage_errors(self._path):
            write_durably(self._path / spool_file.INDEX, index.to_json().encode())
        return SpoolInfo(
            self.samples,
            len(self._rows),
            self._bytes,
            labelled,
            digest,
            self._left_out,
            checker.not_finite,
        )

    def _note(self, sample: Feed) -> None:
        exact, bare = identity.digest(sample), identity.unpadded(sample, self._checker.inputs)
        self._exact.append(exact)
        self._digests.append(exact if bare is sample else identity.digest(bare))

    def _flush(self) -> None:
        with storage_errors(self._path):
            self._path.mkdir(parents=True, exist_ok=True)
        spool_file.save(self._shard, self._path / f"{self._shards:05d}.safetensors")
        self._shard, self._held, self._shards = {}, 0, self._shards + 1
