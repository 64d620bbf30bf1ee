"""Patches of one value in one part of the data, for the windows of convolutions
(`statistics.windows`)."""

from __future__ import annotations

from math import prod

import numpy as np

from optkit.craft.calibration.part import Data, SamplePart
from optkit.ground.statistics import PATCHES, Window


class PatchView:
    """The patches of a value [n, C, *spatial], numbered n × positions. A patch is copied only when
    it is read: all patches together are Π kernel times as large as the value."""

    def __init__(self, data: Data, part: SamplePart, window: Window) -> None:
        self._window = window
        self._view = window.view(data.x)
        positions = self._view.shape[2 : data.x.ndim]
        self._grid = (len(data.x), *positions)
        self.hashes = part.hashes(prod(self._grid))
        whole = len(data.x) % part.samples == 0
        self._samples = part.samples if whole else 1

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """float32 [len(numbers), groups · K]."""
        sample, *position = np.unravel_index(numbers, self._grid)
        place: tuple[np.ndarray | slice, ...] = (sample, slice(None), *position)
        patches: np.ndarray = self._view[place]
        return patches.reshape(len(numbers), prod(patches.shape[1:]))

    def for_moments(self) -> np.ndarray:
        """float32 [groups, m, K]: for each sample the `PATCHES` patches with the smallest
        hashes, in their order. The choice depends neither on the batch nor on the numbers in the
        patches."""
        hashes = self.hashes.reshape(self._samples, -1)
        each = hashes.shape[1]
        chosen = np.arange(each)[None].repeat(self._samples, axis=0)
        if each > PATCHES:
            chosen = np.sort(np.argpartition(hashes, PATCHES, axis=1)[:, :PATCHES], axis=1)
        numbers = (chosen + np.arange(self._samples)[:, None] * each).reshape(-1)
        rows = self.rows(numbers)
        return rows.reshape(len(rows), self._window.groups, -1).swapaxes(0, 1)
