"""Mean average precision of oriented boxes: the functions of the task `obb`, for a task with
pictures of its own too. The labels are those of `optkit.data.frames`, with the four corners of each
box as its points.

The overlap is the intersection over union of the two quadrilaterals, computed exactly. Ultralytics'
validation compares Gaussians (probIoU) in its place, so its figures differ a little.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from optkit.craft.benchmarking import detection, detector_heads, polygons
from optkit.craft.benchmarking.average_precision import Detections, MatchCriteria
from optkit.craft.benchmarking.detection import Overlap, Picture
from optkit.craft.benchmarking.detector_heads import DetectionLimits, Outputs
from optkit.craft.benchmarking.drawings import Objects, Shape
from optkit.facts.errors import unknown_name
from optkit.ground.data.frames import Boxes, Frame

Head = Literal["auto", "yolo", "yolo_nms"]
_HEADS = ("yolo", "yolo_nms")
_PER_CLASS = 300  # a picture from the air has many objects of one class


def metric(overlap: Overlap = "coco", area: str = "all") -> str:
    """What the score is called: obb_map is the mean over overlaps from 0.5 to 0.95."""
    return f"obb_{detection.metric(overlap, area)}"


def score(
    outputs: dict[str, np.ndarray],
    labels: np.ndarray,
    head: Head = "auto",
    confidence: float = 0.001,
    suppression: float = 0.7,
    detections: int = 300,
) -> np.ndarray:
    """What `average_precision` needs of each picture: float64 [batch, rows, 6].

    head: the form of the outputs: yolo [batch, 4 + classes + 1, anchors]: centre and sides in
    pixels, a probability per class, the angle in radians; yolo_nms [batch, boxes, 7]: centre and
    sides, score, class, angle. The others are those of `detection.score`.
    """
    limits = DetectionLimits(confidence, suppression, detections)
    return detection.rows_of(_pictures(outputs, labels, head, limits), labels, limits, LIKENESS)


def drawn(
    outputs: dict[str, np.ndarray],
    labels: np.ndarray,
    head: Head = "auto",
    suppression: float = 0.7,
) -> list[Objects]:
    """The annotated and the found boxes of each picture with a score of at least 0.25."""
    pictures = _pictures(outputs, labels, head, DetectionLimits(detection.DRAWN, suppression, 300))
    return [detection.objects_of(*picture, LIKENESS, _shapes) for picture in pictures]


def _pictures(
    outputs: Outputs, labels: np.ndarray, head: Head, limits: DetectionLimits
) -> Iterator[Picture]:
    """Raises UnknownName (the head), ValueError (outputs that do not fit it)."""
    whole = next(iter(outputs.values()))
    if whole.ndim != 3:
        raise ValueError(f"an output of oriented boxes has three axes, this one {whole.ndim}")
    name = head
    if head == "auto":
        name = "yolo_nms" if whole.shape[2] == 7 else "yolo"
    if name not in _HEADS:
        raise unknown_name("head", name, ("auto", *_HEADS))
    if name == "yolo_nms" and whole.shape[2] != 7:
        raise ValueError(f"head yolo_nms has 7 numbers per box, the output {list(whole.shape)}")
    ready = name == "yolo_nms"
    found = (_ready(one) if ready else _candidates(one.T) for one in whole)
    suppress = None if ready else _suppressed
    return detection.placed(
        (detector_heads.limited(one, limits, suppress) for one in found), labels
    )


def _candidates(rows: np.ndarray) -> Detections:
    """From [anchors, 4 + classes + 1]."""
    quads = polygons.corners(np.concatenate([rows[:, :4], rows[:, -1:]], axis=1))
    return detector_heads.per_class(polygons.bounds(quads), rows[:, 4:-1], _with_visibility(quads))


def _ready(rows: np.ndarray) -> Detections:
    """From [boxes, 7]."""
    quads = polygons.corners(np.concatenate([rows[:, :4], rows[:, 6:]], axis=1))
    classes = rows[:, 5].astype(np.int64)
    return Detections(polygons.bounds(quads), rows[:, 4], classes, _with_visibility(quads))


def _with_visibility(quads: np.ndarray) -> np.ndarray:
    return np.concatenate([quads, np.ones((*quads.shape[:2], 1), quads.dtype)], axis=-1)


def _quads(objects: Detections | Boxes) -> np.ndarray:
    """The corners of the boxes [n, 4, 2]. Raises ValueError for labels of upright boxes."""
    if objects.points is None or objects.points.shape[1] != 4:
        raise ValueError("the labels have no corners of oriented boxes")
    return objects.points[..., :2]


def _suppressed(found: Detections, limits: DetectionLimits) -> np.ndarray:
    return polygons.suppressed(
        _quads(found), found.scores, found.classes, limits.overlap, limits.detections
    )


def _overlaps(found: Detections, truth: Boxes) -> np.ndarray:
    return polygons.overlaps(_quads(found), _quads(truth))


def _areas(found: Detections) -> np.ndarray:
    return polygons.areas(_quads(found))


def _shapes(frame: Frame, objects: Detections | Boxes) -> tuple[Shape, ...]:
    lines = frame.to_input(_quads(objects))
    return tuple(Shape(int(kind), line) for kind, line in zip(objects.classes, lines, strict=True))


LIKENESS = MatchCriteria(_overlaps, _areas, lambda truth: truth.crowd, _PER_CLASS)
"""Of oriented boxes."""
