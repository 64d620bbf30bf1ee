"""Where a picture lies in the input of a model, and the boxes that are annotated in it.

The labels of a detection task are one float64 array per batch, [batch, 1 + boxes, 8]. In each
sample, row 0 is the frame, and each further row is a box in the pixels of the picture; rows of
class -1 only fill up the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Self

import numpy as np

COLUMNS = 8
NONE = -1.0
"""The class of a row that is no box."""


@dataclass(frozen=True)
class Frame:
    """A picture of `width` × `height` pixels in an input of `input_width` × `input_height`: a point
    (x, y) of the picture is (left + x·across, top + y·down) in the input."""

    width: float
    height: float
    across: float
    down: float
    left: float
    top: float
    input_width: float
    input_height: float

    @classmethod
    def of(
        cls,
        picture: tuple[int, int],
        resized: tuple[int, int],
        offset: tuple[int, int],
        whole: tuple[int, int],
    ) -> Self:
        """A picture of this size (width, height) that was resized to another one, and put at
        `offset` (left, top) into an input of the size `whole`."""
        across, down = resized[0] / picture[0], resized[1] / picture[1]
        return cls(*picture, across, down, *offset, *whole)

    def to_picture(self, points: np.ndarray) -> np.ndarray:
        """Points [..., 2n] (x1, y1, x2, y2, …) in the pixels of the input → in those of the
        picture."""
        start, scale = self._moves(points.shape[-1])
        return np.asarray((points - start) / scale)

    def to_input(self, points: np.ndarray) -> np.ndarray:
        """The inverse of `to_picture`."""
        start, scale = self._moves(points.shape[-1])
        return np.asarray(points * scale + start)

    def _moves(self, numbers: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = numbers // 2
        return np.tile((self.left, self.top), pairs), np.tile((self.across, self.down), pairs)

    @classmethod
    def read(cls, sample: np.ndarray) -> Self:
        """The frame of one sample's labels [1 + boxes, 8]."""
        return cls(*sample[0].tolist())


@dataclass(frozen=True)
class Boxes:
    """The annotated boxes of a picture: `classes` [n], `corners` [n, 4] (x1, y1, x2, y2, in pixels
    of the picture), `areas` [n] in pixels² (of the object, where its outline is known), `crowd`
    [n]: whether it is a group, in which any number of detections is right."""

    classes: np.ndarray
    corners: np.ndarray
    areas: np.ndarray
    crowd: np.ndarray

    @classmethod
    def read(cls, sample: np.ndarray) -> Self:
        """The boxes of one sample's labels [1 + boxes, 8]."""
        rows = sample[1:]
        rows = rows[rows[:, 0] != NONE]
        return cls(rows[:, 0].astype(np.int64), rows[:, 1:5], rows[:, 5], rows[:, 6] != 0)


def labels(
    corners: Sequence[np.ndarray],
    classes: Sequence[np.ndarray],
    size: tuple[int, int],
    most: int | None = None,
) -> np.ndarray:
    """The labels of a batch of pictures that go into the model as they are: float64 [batch,
    1 + most, 8].

    corners: for each picture, boxes [n, 4] (x1, y1, x2, y2) in pixels; classes: for each picture,
    [n]; size: width and height of the input; most: the largest number of boxes in a picture of all
    batches, because the labels of all batches have one shape (None: in this batch).

    Raises ValueError if a picture has more than `most` boxes.
    """
    frame = Frame.of(size, size, (0, 0), size)
    largest = max(map(len, corners), default=0)
    most = largest if most is None else most
    if largest > most:
        raise ValueError(f"a picture has {largest} boxes, and most is {most}")
    rows = []
    for ours, kinds in zip(corners, classes, strict=True):
        areas = (ours[:, 2:] - ours[:, :2]).prod(1)
        rows.append(written(frame, Boxes(kinds, ours, areas, np.zeros(len(ours), bool)), most))
    return np.stack(rows)


def written(frame: Frame, boxes: Boxes, most: int) -> np.ndarray:
    """The labels of one sample: float64 [1 + most, 8]. `most`: at least the number of boxes."""
    rows = np.zeros((1 + most, COLUMNS))
    rows[0] = astuple(frame)
    rows[1:, 0] = NONE
    own = rows[1 : 1 + len(boxes.classes)]
    own[:, 0], own[:, 1:5] = boxes.classes, boxes.corners
    own[:, 5], own[:, 6] = boxes.areas, boxes.crowd
    return rows
