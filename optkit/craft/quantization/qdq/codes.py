"""Quantized codes with their scales, in one form for all operators that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

_ROWS = 4096  # that are compared at a time


@dataclass(frozen=True)
class Codes:
    """W[n, k] = (codes[n, k] - zero_points[n, k // block]) * scales[n, k // block]

    codes        int8 or uint8 [N, K]
    scales       float16, bfloat16 or float32 [N, blocks]
    zero_points  of the dtype of the codes [N, blocks]
    block        codes of a row that share a scale; the last block of a row may be shorter
    bits         of one code
    """

    codes: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray
    block: int
    bits: int

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.codes.shape
        return rows, columns

    def centred(self) -> np.ndarray:
        """Codes minus zero points: int16 [N, K]."""
        zero_points = self._by_code(self.zero_points.astype(np.int16))
        centred: np.ndarray = self.codes.astype(np.int16) - zero_points
        return centred

    def numbers(self) -> np.ndarray:
        """W: float32 [N, K]."""
        scales = self._by_code(self.scales.astype(np.float32))
        numbers: np.ndarray = self.centred() * scales
        return numbers

    def rows(self, index: slice | np.ndarray) -> Self:
        """These rows, in this order."""
        parts = (self.codes[index], self.scales[index], self.zero_points[index])
        return replace(self, codes=parts[0], scales=parts[1], zero_points=parts[2])

    def scaled(self, factors: np.ndarray) -> Self:
        """Each row times its factor: [N]."""
        scales = self.scales.astype(np.float32) * factors.astype(np.float32)[:, None]
        return replace(self, scales=scales)

    def in_blocks_of(self, size: int) -> Self | None:
        """The same numbers with a scale for every `size` codes. None: the rows, or the present
        blocks, are not multiples of `size`."""
        _, columns = self.shape
        if columns % size or (self.block % size and self.scales.shape[1] > 1):
            return None
        count = columns // size
        if self.scales.shape[1] == 1:
            expanded = [np.repeat(part, count, axis=1) for part in (self.scales, self.zero_points)]
        else:
            times = self.block // size
            expanded = [
                np.repeat(part, times, axis=1)[:, :count]
                for part in (self.scales, self.zero_points)
            ]
        return replace(self, scales=expanded[0], zero_points=expanded[1], block=size)

    def _by_code(self, parts: np.ndarray) -> np.ndarray:
        """A number of each block, repeated for its codes. One block is broadcast."""
        if parts.shape[1] == 1:
            return parts
        return np.repeat(parts, self.block, axis=1)[:, : self.shape[1]]


@dataclass(frozen=True)
class FloatCodes:
    """W[n, k] = codes[n, k] * scales[n, k // block] * outer

    codes   float8_e4m3fn or float4_e2m1fn [N, K]
    scales  float16, bfloat16, float32, or float8_e4m3fn [N, blocks]
    outer   the scale of all scales; 1: they have none
    block   codes of a row that share a scale; it divides the row
    """

    codes: np.ndarray
    scales: np.ndarray
    outer: np.float32
    block: int

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.codes.shape
        return rows, columns

    def numbers(self) -> np.ndarray:
        """W: float32 [N, K]."""
        scales = self.scales.astype(np.float32) * self.outer
        numbers: np.ndarray = self.codes.astype(np.float32) * np.repeat(scales, self.block, axis=1)
        return numbers

    def rows(self, index: slice | np.ndarray) -> Self:
        """These rows, in this order."""
        return replace(self, codes=self.codes[index], scales=self.scales[index])

    def scaled(self, factors: np.ndarray) -> Self:
        """Each row times its factor: [N]. The scales become float32 without another scale, unless
        they hold the product themselves (powers of two)."""
        wide = self.scales.astype(np.float32) * factors.astype(np.float32)[:, None]
        held = wide.astype(self.scales.dtype)
        if self.scales.dtype.itemsize == 1 and np.array_equal(held.astype(np.float32), wide):
            return replace(self, scales=held)
        scales = self.scales.astype(np.float32) * self.outer * factors.astype(np.float32)[:, None]
        return replace(self, scales=scales, outer=np.float32(1))


def same(one: Codes | FloatCodes | np.ndarray, other: Codes | FloatCodes | np.ndarray) -> bool:
    """Whether two matrices are the same when they are stored."""
    if isinstance(one, Codes) and isinstance(other, Codes):
        return one.shape == other.shape and all(
            np.array_equal(a.centred(), b.centred()) and np.array_equal(a.numbers(), b.numbers())
            for a, b in ((one.rows(part), other.rows(part)) for part in _parts(one.shape[0]))
        )
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    return one.dtype == other.dtype and np.array_equal(one, other)


def _parts(rows: int) -> Iterator[slice]:
    """All rows, so few at a time that their numbers need little memory."""
    return (slice(start, start + _ROWS) for start in range(0, rows, _ROWS))
