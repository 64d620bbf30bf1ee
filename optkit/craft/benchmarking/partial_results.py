"""Scores of a long evaluation, or sums of a long comparison, on disk. A killed evaluation continues
and ends with the same bits, and so does one whose parts ran on several machines.

    folder/scores.safetensors   the scores of all batches that are done, replaced atomically

The folder belongs to one graph, one task or reference and one set of samples in batches of one
size: that is the key of the step. A damaged file of a killed try is not used.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from safetensors import SafetensorError

from optkit.facts.codec import from_json
from optkit.facts.errors import IntegrityError
from optkit.ground.statistics.file import read_tensors, write_tensors
from optkit.ground.store import durably, storage_errors

_FILE, _SCORES = "scores.safetensors", "scores"
_SECONDS = 10.0  # between two writes; writing takes at most a twentieth of the time
_SHARE = 20
_DAMAGED = (SafetensorError, OSError, ValueError, KeyError, TypeError)


class PartialScores:
    """`scores`: one array [batch, …] per finished batch, those of an earlier run first; `samples`:
    the number of their rows; `layout`: what their columns are, as JSON, where the user of the
    scores needs that. `folder`: None if nothing is written. `first`: the number of the first
    sample, which is not 0 in a part of the samples."""

    def __init__(self, folder: Path | None, first: int = 0) -> None:
        self.first = first
        self.scores: list[np.ndarray] = []
        self.layout: object = None
        self._file = None if folder is None else folder / _FILE
        self._next = time.monotonic() + _SECONDS
        if self._file is not None:
            with storage_errors(self._file):
                self._file.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.layout, self.scores = _read(self._file)
            except _DAMAGED:
                self.layout, self.scores = None, []
        self.samples = sum(map(len, self.scores))

    @classmethod
    def joined(cls, parts: Iterable[Path]) -> Self:
        """The scores that `save` wrote into the folders of all parts, in their order. Raises
        IntegrityError for a missing or damaged file."""
        kept = cls(None)
        for folder in parts:
            try:
                layout, scores = _read(folder / _FILE)
            except _DAMAGED as error:
                where = str(folder / _FILE)
                raise IntegrityError("a part's scores cannot be read", where=where) from error
            kept.scores += scores
            kept.layout = kept.layout or layout
        kept.samples = sum(map(len, kept.scores))
        return kept

    def add(self, scores: np.ndarray) -> None:
        """Add one more batch. Raises StorageError."""
        self.scores.append(scores)
        self.samples += len(scores)
        started = time.monotonic()
        if self._file is None or started < self._next:
            return
        self.save(self._file.parent)
        ended = time.monotonic()
        self._next = ended + max(_SECONDS, _SHARE * (ended - started))

    def save(self, folder: Path) -> None:
        """Write all scores to the folder; a part of the samples may have none. Raises
        StorageError."""
        file = folder / _FILE
        scores = np.concatenate(self.scores or [np.zeros(0)])
        with storage_errors(file), durably(file) as temporary:
            metadata = _Metadata([len(batch) for batch in self.scores], self.layout)
            write_tensors(temporary, {_SCORES: scores}, metadata)


@dataclass(frozen=True)
class _Metadata:
    """`sizes`: the number of rows of each batch."""

    sizes: list[int]
    layout: object


def _read(file: Path) -> tuple[object, list[np.ndarray]]:
    """The layout and the scores of a file."""
    metadata, tensors = read_tensors(file, mapped="-")
    found = from_json(_Metadata, metadata)
    parts = np.split(tensors[_SCORES], np.cumsum(found.sizes)[:-1]) if found.sizes else []
    return found.layout, parts
