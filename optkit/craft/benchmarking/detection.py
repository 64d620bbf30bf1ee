"""Mean average precision of a detector: the functions of the task `detection`, for a task with
pictures of its own too. The labels are those of `optkit.data.frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import numpy as np

from optkit.craft.benchmarking import average_precision, detector_heads
from optkit.craft.benchmarking.average_precision import BOXES, Detections, MatchCriteria, compact
from optkit.craft.benchmarking.detector_heads import DetectionLimits, Head
from optkit.craft.benchmarking.drawings import Objects, Shape
from optkit.ground.data.frames import Boxes, Frame

Overlap = Literal["coco", "50", "75"]
Picture = tuple[Frame, Detections, Boxes]
"""The frame of a picture, and its detections and annotated objects in pixels of the picture."""
_THRESHOLDS = {"coco": slice(None), "50": slice(0, 1), "75": slice(5, 6)}
DRAWN = 0.25
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
    limits = DetectionLimits(confidence, suppression, detections)
    return rows_of(_pictures(outputs, labels, head, limits), labels, limits, BOXES)


def rows_of(
    pictures: Iterable[Picture],
    labels: np.ndarray,
    limits: DetectionLimits,
    likeness: MatchCriteria,
) -> np.ndarray:
    """What `average_precision` needs of each picture: float64 [batch, rows, 6]."""
    rows = limits.detections + labels.shape[1] - 1
    return np.stack(
        [average_precision.matched(found, truth, rows, likeness) for _, found, truth in pictures]
    )


def placed(found: Iterable[Detections], labels: np.ndarray) -> Iterator[Picture]:
    """The pictures of a batch, from detections in pixels of the input."""
    for sample, one in zip(labels, found, strict=True):
        frame, points = Frame.read(sample), one.points
        if points is not None:
            places = frame.to_picture(points[..., :2])
            points = np.concatenate([places, points[..., 2:]], axis=-1)
        corners = frame.to_picture(one.corners)
        yield frame, Detections(corners, one.scores, one.classes, points), Boxes.read(sample)


def input_sizes(labels: np.ndarray) -> np.ndarray:
    """Width and height of the input of each sample [batch, 2]."""
    frames = [Frame.read(sample) for sample in labels]
    return np.asarray([(frame.input_width, frame.input_height) for frame in frames])


def _pictures(
    outputs: dict[str, np.ndarray], labels: np.ndarray, head: Head, limits: DetectionLimits
) -> Iterator[Picture]:
    found = detector_heads.detections(outputs, input_sizes(labels), head, limits)
    return placed(found, labels)


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
    pictures = _pictures(outputs, labels, head, DetectionLimits(DRAWN, suppression, 300))
    return [objects_of(*picture, BOXES, _shapes) for picture in pictures]


Shapes = Callable[[Frame, Detections | Boxes], tuple[Shape, ...]]
"""The shapes of all objects of a picture, in pixels of the input."""


def objects_of(
    frame: Frame, found: Detections, truth: Boxes, likeness: MatchCriteria, shapes: Shapes
) -> Objects:
    """What is drawn of a picture. Annotated objects that do not count are left out, and so are the
    detections that match them."""
    partners, ignored = average_precision.partners(found, truth, likeness), likeness.ignored(truth)
    single, counts = np.flatnonzero(~ignored), ~np.append(ignored, False)[partners]
    places = np.full(len(ignored) + 1, -1)
    places[single] = np.arange(len(single))
    return Objects(
        shapes(frame, truth.chosen(single)),
        shapes(frame, found.chosen(np.flatnonzero(counts))),
        found.scores[counts],
        places[partners[counts]],
        DRAWN,
    )


def outlines(frame: Frame, corners: np.ndarray) -> np.ndarray:
    """Boxes [n, 4] in the pixels of a picture as rectangles [n, 4, 2] in those of the input."""
    return frame.to_input(corners)[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)


def _shapes(frame: Frame, objects: Detections | Boxes) -> tuple[Shape, ...]:
    lines = outlines(frame, objects.corners)
    return tuple(Shape(int(kind), line) for kind, line in zip(objects.classes, lines, strict=True))
