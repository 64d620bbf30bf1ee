"""Mean average precision of a detector: the functions of the task `detection`, for a task with
pictures of its own too. The labels are those of `optkit.data.frames`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from optkit.benchmarking import average_precision, detector_heads
from optkit.benchmarking.average_precision import Detections, compact
from optkit.benchmarking.detector_heads import Head, Limits
from optkit.benchmarking.drawings import Objects, Shape
from optkit.data.frames import Boxes, Frame

Overlap = Literal["coco", "50", "75"]
_THRESHOLDS = {"coco": slice(None), "50": slice(0, 1), "75": slice(5, 6)}
_DRAWN = 0.25
"""The least score of a detection that is drawn; the metric counts far less sure ones too."""
_NAMES = {"coco": "map", "50": "map50", "75": "map75"}


def metric(overlap: Overlap = "coco", area: str = "all") -> str:
    """What the score is called: map is COCO's mean over overlaps from 0.5 to 0.95."""
    return _NAMES[overlap] if area == "all" else f"{_NAMES[overlap]}_{area}"


def score(
    outputs: dict[str, np.ndarray],
    labels: np.ndarray,
    head: Head = "auto",
    confidence: float = 0.001,
    suppression: float = 0.7,
    detections: int = 300,
) -> np.ndarray:
    """What `average_precision` needs of each picture: float64 [batch, rows, 6].

    head: the form of the outputs, see `detector_heads`. confidence: the least score; suppression:
    the overlap above which one of two detections of a class is dropped; detections: at most so many
    per picture.
    """
    limits = Limits(confidence, suppression, detections)
    rows = detections + labels.shape[1] - 1
    return np.stack(
        [
            average_precision.matched(found, truth, rows)
            for _, found, truth in _pictures(outputs, labels, head, limits)
        ]
    )


def _pictures(
    outputs: dict[str, np.ndarray], labels: np.ndarray, head: Head, limits: Limits
) -> Iterator[tuple[Frame, Detections, Boxes]]:
    """The frame of each picture, and its detections and annotated boxes in pixels of the
    picture."""
    frames = [Frame.read(sample) for sample in labels]
    sizes = np.asarray([(frame.input_width, frame.input_height) for frame in frames])
    found = detector_heads.detections(outputs, sizes, head, limits)
    for frame, one, sample in zip(frames, found, labels, strict=True):
        corners = frame.to_picture(one.corners)
        yield frame, Detections(corners, one.scores, one.classes), Boxes.read(sample)


def combine(scores: np.ndarray) -> np.ndarray:
    """The same rows without those that are empty in all pictures."""
    return compact(scores)


def weighted(
    scores: np.ndarray, overlap: Overlap = "coco", area: str = "all"
) -> average_precision.Part:
    """How often each picture counts → the mean average precision. overlap: coco (0.5 to 0.95), 50
    or 75; area: all, small (< 32² pixels), medium or large (> 96²)."""
    return average_precision.precision(scores, thresholds=_THRESHOLDS[overlap], area=area)


def slices(
    scores: np.ndarray, overlap: Overlap = "coco", area: str = "all"
) -> dict[str, average_precision.Part]:
    """The same metric of each annotated class; and of small, medium and large boxes, if `area` is
    all."""
    thresholds = _THRESHOLDS[overlap]
    classes = {
        f"class {kind}": average_precision.precision(
            scores, thresholds=thresholds, area=area, kind=kind
        )
        for kind in average_precision.annotated(scores, area)
    }
    others = [name for name in average_precision.AREAS if name != "all" and area == "all"]
    return classes | {
        f"{name} boxes": average_precision.precision(scores, thresholds=thresholds, area=name)
        for name in others
        if average_precision.annotated(scores, name)
    }


def each(scores: np.ndarray, overlap: Overlap = "coco", area: str = "all") -> np.ndarray:
    """The metric of each picture alone [pictures]; 0 for one without a box that counts."""
    return average_precision.alone(scores, thresholds=_THRESHOLDS[overlap], area=area)


def drawn(
    outputs: dict[str, np.ndarray],
    labels: np.ndarray,
    head: Head = "auto",
    suppression: float = 0.7,
) -> list[Objects]:
    """The annotated boxes and the detections of each picture with a score of at least 0.25. Crowds
    are left out, and so are detections in them, which are neither right nor wrong."""
    limits = Limits(_DRAWN, suppression, 300)
    return [_objects(*picture) for picture in _pictures(outputs, labels, head, limits)]


def _objects(frame: Frame, found: Detections, truth: Boxes) -> Objects:
    partners = average_precision.partners(found, truth)
    single, counts = np.flatnonzero(~truth.crowd), ~np.append(truth.crowd, False)[partners]
    places = np.full(len(truth.crowd) + 1, -1)
    places[single] = np.arange(len(single))
    return Objects(
        _shapes(frame, truth.classes[single], truth.corners[single]),
        _shapes(frame, found.classes[counts], found.corners[counts]),
        found.scores[counts],
        places[partners[counts]],
        _DRAWN,
    )


def _shapes(frame: Frame, classes: np.ndarray, corners: np.ndarray) -> tuple[Shape, ...]:
    """Boxes [n, 4] in the pixels of a picture as rectangles in those of the input."""
    outlines = frame.to_input(corners)[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    return tuple(Shape(int(kind), line) for kind, line in zip(classes, outlines, strict=True))
