"""Samples on their way through consecutive segments of a graph, so that each node runs once for
each sample.

    inputs ──► segment 0 ── crossing values ──► segment 1 ── crossing values ──► …
                  └──► errors ──► second moments  └──► errors ──► second moments

The crossing values of all samples stay in memory; those that do not fit wait in files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from optkit.craft.calibration.feeds import Cutter
from optkit.craft.calibration.fills import NO_FILLS
from optkit.craft.calibration.part import Data, SamplePart, data
from optkit.facts.tensors import Feed, batch_axis
from optkit.ground.data.padding import mask_input, real_tokens
from optkit.ground.data.spool import Spool
from optkit.ground.runtimes import Session
from optkit.ground.statistics import Moments
from optkit.ground.statistics.sums import add_symmetric
from optkit.ground.store import storage_errors

_ROWS = 2048  # from these rows one product is computed


def feed_size(
    model: ir.Model, crossing: Collection[str], samples: Spool, batch: int | None
) -> int | None:
    """Samples per feed. It is one if a value that crosses between two segments may have another
    axis than the batch in front, because a part of a batch could then not be cut out of it."""
    axis = batch_axis(samples.inputs)
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    shapes = [values[name].shape for name in crossing]
    first = [shape[0] if shape is not None and len(shape) else None for shape in shapes]
    alike = all(isinstance(dim, ir.SymbolicDim) and dim.value == axis for dim in first)
    return batch if alike or batch is None else 1


@dataclass
class Segments:
    """The samples, `size` in a feed, and the values that the last segment left for each feed.

    `free`: bytes of memory that are free now; half of them are for crossing values. `folder`: for
    those that do not fit.
    """

    samples: Spool
    size: int | None
    free: Callable[[], int]
    folder: Path
    _left: dict[int, Feed | Path] = field(default_factory=dict)  # by the number of the feed
    _held: int = 0  # bytes of those in memory

    def advance(
        self, session: Session, left: Sequence[str], errors: str, channels: int
    ) -> tuple[Moments, np.ndarray] | None:
        """Run the next segment on all samples, and keep the values with the names `left`.

        errors: an output [..., channels + M]. Returns the second moments of its first `channels`,
        and the means of their products with the others, float64 [channels, M]; None if it has no
        numbers.
        """
        cutter, budget = Cutter(session, self.free() // 4), (self.free() + self._held) // 2
        sums, mask = ErrorSums(channels), mask_input(self.samples.inputs)
        for index, (inputs, _) in enumerate(self.samples.batches(self.size)):
            feed = inputs | self._read(index)
            found = feed | cutter.run(feed)
            part = SamplePart(0, [b""] * cutter.count(feed), real_tokens(feed, mask))
            sums.add(data(found[errors], part, NO_FILLS, -1))
            self._keep(index, {name: found[name] for name in left}, budget)
        return sums.result()

    def _read(self, index: int) -> Feed:
        left = self._left.get(index, {})
        if not isinstance(left, Path):
            return left
        with np.load(left) as stored:
            return {name: stored[f"arr_{n}"] for n, name in enumerate(stored["names"].tolist())}

    def _keep(self, index: int, values: Feed, budget: int) -> None:
        before = self._left.get(index, {})
        self._held -= 0 if isinstance(before, Path) else _bytes(before)
        if self._held + _bytes(values) <= budget:
            self._left[index] = values
            self._held += _bytes(values)
            return
        self._left[index] = place = self.folder / f"{index}.npz"
        with storage_errors(self.folder):
            np.savez(place, *values.values(), names=np.array([*values], str))


def _bytes(feed: Feed) -> int:
    return sum(array.nbytes for array in feed.values())


class ErrorSums:
    """Second moments of the first channels of rows, and their products with the others. A product
    of `_ROWS` rows is float32, sums of them are float64, so they do not depend on the batch."""

    def __init__(self, channels: int) -> None:
        self._channels, self._held, self._count = channels, 0, 0
        self._waiting: np.ndarray | None = None  # rows without a product yet
        self._total = np.empty(0)

    def add(self, found: Data) -> None:
        if found.verdict is not None or not found.x.size:
            return
        rows = found.x.reshape(-1, found.x.shape[-1])
        if self._waiting is None:
            self._waiting = np.empty((_ROWS, rows.shape[1]), np.float32)
            self._total = np.zeros((self._channels, rows.shape[1]))
        while len(rows):
            taken = rows[: _ROWS - self._held]
            self._waiting[self._held : self._held + len(taken)] = taken
            self._held += len(taken)
            rows = rows[len(taken) :]
            if self._held == _ROWS:
                self._multiply(self._waiting)

    def result(self) -> tuple[Moments, np.ndarray] | None:
        if self._waiting is None:
            return None
        self._multiply(self._waiting[: self._held])
        k = self._channels
        packed, diagonal = np.zeros((k, k)), np.zeros(k)
        add_symmetric(packed, diagonal, self._total[:, :k])
        return Moments(packed, diagonal, self._count), self._total[:, k:] / self._count

    def _multiply(self, rows: np.ndarray) -> None:
        left, right = rows[:, : self._channels], rows[:, self._channels :]
        self._total[:, : self._channels] += left.T @ left  # numpy computes one half and mirrors it
        self._total[:, self._channels :] += left.T @ right
        self._count += len(rows)
        self._held = 0
