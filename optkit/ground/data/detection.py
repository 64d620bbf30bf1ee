"""Pictures with annotated boxes, for the evaluation of detectors.

The labels of a batch are the frames and the boxes of its pictures, see `frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optkit.ground.data import box_annotations, frames, images, reading
from optkit.ground.data.box_annotations import AnnotatedPicture, Dataset
from optkit.ground.data.checking import Item
from optkit.ground.data.frames import Frame
from optkit.ground.data.preprocessing import Numbers, Size
from optkit.ground.data.reading import Inputs

if TYPE_CHECKING:
    from PIL.Image import Image


Prepare = Callable[["Image"], tuple[np.ndarray, Frame]]


def samples(
    path: Path,
    pictures: Path | None = None,
    split: str = "val",
    classes: list[str] | None = None,
    preprocessing: str | None = None,
    size: Size = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    processor: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[Item]:
    """Batches of (feed, labels float64 [batch, 1 + boxes, 8]) from annotations of COCO or YOLO.

    path, pictures, split, classes: see `box_annotations.read`. The other arguments are those of
    `images.samples`; a preprocessing that cuts the middle out resizes the whole picture here.

    Raises InputRefused.
    """
    dataset = box_annotations.read(
        path, pictures=pictures, split=split, classes=classes, model=model
    )
    prepare = images.framed(
        preprocessing, size, mean, std, processor, model, images.pixel_input(inputs)[1]
    )
    return _batches(dataset, prepare, inputs)


def poses(
    path: Path,
    pictures: Path | None = None,
    split: str = "val",
    classes: list[str] | None = None,
    preprocessing: str | None = None,
    size: Size = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    processor: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[Item]:
    """As `samples`, with keypoints of COCO or YOLO: labels float64 [batch, 1 + boxes, 8 +
    3·keypoints]. Arguments and errors are the same."""
    dataset = box_annotations.read(
        path, objects="poses", pictures=pictures, split=split, classes=classes, model=model
    )
    prepare = images.framed(
        preprocessing, size, mean, std, processor, model, images.pixel_input(inputs)[1]
    )
    return _batches(dataset, prepare, inputs)


def oriented(
    path: Path,
    split: str = "val",
    classes: list[str] | None = None,
    preprocessing: str | None = None,
    size: Size = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    processor: Path | None = None,
    model: str | None = None,
    inputs: Inputs | None = None,
) -> Iterator[Item]:
    """As `samples`, with oriented boxes of YOLO: labels float64 [batch, 1 + boxes, 8 + 3·4].
    Arguments and errors are the same."""
    dataset = box_annotations.read(
        path, objects="oriented", pictures=None, split=split, classes=classes, model=model
    )
    prepare = images.framed(
        preprocessing, size, mean, std, processor, model, images.pixel_input(inputs)[1]
    )
    return _batches(dataset, prepare, inputs)


def _batches(dataset: Dataset, prepare: Prepare, inputs: Inputs | None) -> Iterator[Item]:
    name, info = images.pixel_input(inputs)
    dtype = info.dtype if info is not None else "float32"

    def prepared(group: Sequence[AnnotatedPicture]) -> list[tuple[np.ndarray, np.ndarray]]:
        rows = []
        for one in group:
            pixels, frame = prepare(images.decoded(one.picture, images.mode_of(info)))
            boxes = one.of_size(int(frame.width), int(frame.height))
            rows.append((pixels, frames.written(frame, boxes, dataset.most)))
        return rows

    for group in reading.grouped(dataset.pictures, inputs):
        # pictures of different sizes never meet in one batch
        for _, alike in groupby(prepared(group), key=lambda row: row[0].shape):
            pixels, labels = zip(*alike, strict=True)
            yield {name: np.stack(pixels).astype(dtype, copy=False)}, np.stack(labels)
