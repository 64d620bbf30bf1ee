"""Where a picture lies in the input of a model, and the boxes that are annotated in it.

The labels of a detection task are one float64 array per batch, [batch, 1 + boxes, 8 + 3·points]. In
each sample, row 0 is the frame, and each further row is a box in the pixels of the picture, and its
points, if it has any; rows of class -1 only fill up the array.
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
        """The frame of one sample's labels [1 + boxes, 8 + 3·points]."""
        return cls(*sample[0, :COLUMNS].tolist())


@dataclass(frozen=True)
class Boxes:
    """The annotated boxes of a picture: `classes` [n], `corners` [n, 4] (x1, y1, x2, y2, in pixels
    of the picture), `areas` [n] in pixels² (of the object, where its outline is known), `crowd`
    [n]: whether it is a group, in which any number of detections is right. `points` [n, points, 3]
    (x, y, visibility): keypoints, of which one with a visibility of 0 is not labelled; or the four
    corners of an oriented box. None: the boxes have no points."""

    classes: np.ndarray
    corners: np.ndarray
    areas: np.ndarray
    crowd: np.ndarray
    points: np.ndarray | None = None

    @classmethod
    def read(cls, sample: np.ndarray) -> Self:
        """The boxes of one sample's labels [1 + boxes, 8 + 3·points]."""
        rows = sample[1:]
        rows = rows[rows[:, 0] != NONE]
        points = (
            rows[:, COLUMNS:].reshape(len(rows), (rows.shape[1] - COLUMNS) // 3, 3)
            if rows.shape[1] > COLUMNS
            else None
        )
        return cls(rows[:, 0].astype(np.int64), rows[:, 1:5], rows[:, 5], rows[:, 6] != 0, points)

    def chosen(self, index: np.ndarray) -> Boxes:
        """The boxes of these numbers."""
        points = None if self.points is None else self.points[index]
        return Boxes(
            self.classes[index], self.corners[index], self.areas[index], self.crowd[index], points
        )


def labels(
    corners: Sequence[np.ndarray],
    classes: Sequence[np.ndarray],
    size: tuple[int, int],
    most: int | None = None,
    points: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """The labels of a batch of pictures that go into the model as they are: float64 [batch,
    1 + most, 8 + 3·points].

    corners: for each picture, boxes [n, 4] (x1, y1, x2, y2) in pixels; classes: for each picture,
    [n]; size: width and height of the input; most: the largest number of boxes in a picture of all
    batches, because the labels of all batches have one shape (None: in this batch). points: for
    each picture, the keypoints of its boxes, or the corners of oriented ones, [n, points, 3] (x, y,
    visibility; 1 for a corner).

    Raises ValueError if a picture has more than `most` boxes.
    """
    frame = Frame.of(size, size, (0, 0), size)
    largest = max(map(len, corners), default=0)
    most = largest if most is None else most
    if largest > most:
        raise ValueError(f"a picture has {largest} boxes, and most is {most}")
    rows = []
    for index, (ours, kinds) in enumerate(zip(corners, classes, strict=True)):
        areas, own = (ours[:, 2:] - ours[:, :2]).prod(1), points[index] if points else None
        boxes = Boxes(kinds, ours, areas, np.zeros(len(ours), bool), own)
        rows.append(written(frame, boxes, most))
    return np.stack(rows)


def written(frame: Frame, boxes: Boxes, most: int) -> np.ndarray:
    """The labels of one sample: float64 [1 + most, 8 + 3·points]. `most`: at least the number of
    boxes."""
    count = len(boxes.classes)
    points = (
        np.zeros((count, 0))
        if boxes.points is None
        else boxes.points.reshape(count, 3 * boxes.points.shape[1])
    )
    rows = np.zeros((1 + most, COLUMNS + points.shape[1]))
    rows[0, :COLUMNS] = astuple(frame)
    rows[1:, 0] = NONE
    own = rows[1 : 1 + count]
    own[:, 0], own[:, 1:5] = boxes.classes, boxes.corners
    own[:, 5], own[:, 6], own[:, COLUMNS:] = boxes.areas, boxes.crowd, points
    return rows
