"""Scores of a long evaluation, or sums of a long comparison, on disk: a killed one goes on and ends
with the same bits.

    folder/scores.safetensors   the scores of all batches that are done, replaced atomically

The folder belongs to one graph, one task or reference and one set of samples in batches of one
size: that is the key of the step. A file that is damaged is not used.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from optkit.statistics.file import read_tensors, write_tensors
from optkit.store import fsync_dir, storage_errors

_SECONDS = 10.0  # between two writes, and never more than a twentieth of the time to write
_SHARE = 20


class Kept:
    """`scores`: one array [batch, …] per batch that is done, those of an earlier try first;
    `samples` counts their rows. `folder` None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.scores: list[np.ndarray] = []
        self._file = None if folder is None else folder / "scores.safetensors"
        self._next = time.monotonic() + _SECONDS
        if self._file is not None:
            with storage_errors(self._file):
                self._file.parent.mkdir(parents=True, exist_ok=True)
            self.scores = _read(self._file)
        self.samples = sum(map(len, self.scores))

    def add(self, scores: np.ndarray) -> None:
        """One more batch. Raises StorageError."""
        self.scores.append(scores)
        self.samples += len(scores)
        started = time.monotonic()
        if self._file is None or started < self._next:
            return
        _write(self._file, self.scores)
        ended = time.monotonic()
        self._next = ended + max(_SECONDS, _SHARE * (ended - started))


def _read(file: Path) -> list[np.ndarray]:
    try:
        sizes, found = read_tensors(file, mapped="-")
        return np.split(found["scores"], np.cumsum(sizes)[:-1])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return []


def _write(file: Path, scores: list[np.ndarray]) -> None:
    temporary = file.with_name(f".{file.name}.part")
    with storage_errors(file):
        write_tensors(temporary, {"scores": np.concatenate(scores)}, [len(one) for one in scores])
        with temporary.open("rb") as opened:
            os.fsync(opened.fileno())
        temporary.replace(file)
        fsync_dir(file.parent)
