"""Mean average precision of poses by the similarity of keypoints (OKS): the functions of the task
`pose`, for a task with pictures of its own too. The labels are those of `optkit.data.frames`, with
the keypoints of each object as its points.

Method: COCO's evaluation of keypoints (cocodataset.org, "Keypoint evaluation"), as pycocotools
computes it: at most 20 poses of a class per picture; an object without a labelled keypoint does not
count. Objects of COCO smaller than 32² pixels have no keypoints; here they are a range of sizes as
others are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Literal

import numpy as np

from optkit.craft.benchmarking import boxes, detection, detector_heads
from optkit.craft.benchmarking.average_precision import Detections, MatchCriteria
from optkit.craft.benchmarking.detection import Overlap, Picture
from optkit.craft.benchmarking.detector_heads import DetectionLimits, Outputs
from optkit.craft.benchmarking.drawings import Objects, Shape
from optkit.facts.errors import unknown_name
from optkit.ground.data.frames import COLUMNS, Boxes, Frame

Head = Literal["auto", "yolo", "yolo_nms", "corners"]
_PER_CLASS = 20
_PERSON = np.asarray([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000
"""COCO's spread of each keypoint of a person, from nose to ankles."""
_DRAWN = 0.5  # the least probability of a keypoint that is drawn
_CORNERS = ("boxes", "scores", "labels", "keypoints")


def metric(overlap: Overlap = "coco", area: str = "all") -> str:
    """What the score is called: pose_map is COCO's mean over similarities from 0.5 to 0.95."""
    return f"pose_{detection.metric(overlap, area)}"


def score(
    outputs: dict[str, np.ndarray],
    labels: np.ndarray,
    head: Head = "auto",
    kinds: int = 1,
    sigmas: Sequence[float] | None = None,
    confidence: float = 0.001,
    suppression: float = 0.7,
    detections: int = 300,
) -> np.ndarray:
    """What `average_precision` needs of each picture: float64 [batch, rows, 6].

    head: the form of the outputs: yolo [batch, 4 + kinds + 2 or 3 per keypoint, anchors]; yolo_nms
    [batch, poses, 6 + 2 or 3 per keypoint]; corners: boxes, scores, labels and keypoints [batch,
    poses, keypoints, 2 or 3]. kinds: the number of classes. sigmas: how far annotators differ at
    each keypoint (None: COCO's for 17 keypoints, otherwise one divided by their number, as
    Ultralytics has it). The others are those of `detection.score`.
    """
    limits = DetectionLimits(confidence, suppression, detections)
    pictures = _pictures(outputs, labels, head, kinds, limits)
    return detection.rows_of(pictures, labels, limits, _likeness(labels, sigmas))


def drawn(
    outputs: dict[str, np.ndarray],
    labels: np.ndarray,
    head: Head = "auto",
    kinds: int = 1,
    sigmas: Sequence[float] | None = None,
    suppression: float = 0.7,
) -> list[Objects]:
    """The annotated and the found poses of each picture with a score of at least 0.25. Those that
    do not count are left out."""
    limits, likeness = DetectionLimits(detection.DRAWN, suppression, 300), _likeness(labels, sigmas)
    return [
        detection.objects_of(*picture, likeness, _shapes)
        for picture in _pictures(outputs, labels, head, kinds, limits)
    ]


def similarities(found: Detections, truth: Boxes, sigmas: np.ndarray) -> np.ndarray:
    """The object keypoint similarity of every pose with every annotated one [found, annotated].

    For an annotated object without a labelled keypoint, the distances are those to a box twice as
    large on all sides, as in pycocotools.
    """
    if found.points is None or truth.points is None:
        raise ValueError("there are no keypoints")
    places, wanted = found.points[:, None, :, :2], truth.points[None, :, :, :2]
    visible = np.greater(truth.points[..., 2], 0)
    start, stop = truth.corners[:, None, :2], truth.corners[:, None, 2:]
    sides = stop - start
    beyond = np.maximum(start - sides - places, 0) + np.maximum(places - stop - sides, 0)
    some = visible.any(1)
    apart = np.where(some[None, :, None, None], places - wanted, beyond)
    variances = (2 * sigmas) ** 2
    errors = (apart**2).sum(-1) / variances / (truth.areas[:, None] + np.spacing(1)) / 2
    counts = visible | ~some[:, None]
    return np.asarray((np.exp(-errors) * counts).sum(-1) / counts.sum(-1))


def _likeness(labels: np.ndarray, sigmas: Sequence[float] | None) -> MatchCriteria:
    """Raises ValueError if there are not as many sigmas as keypoints, or one is not positive."""
    count = (labels.shape[-1] - COLUMNS) // 3
    usual = _PERSON if count == len(_PERSON) else np.full(count, 1 / max(count, 1))
    spread = usual if sigmas is None else np.asarray(sigmas, np.float64)
    if len(spread) != count:
        raise ValueError(f"args.sigmas has {len(spread)} values for {count} keypoints")
    if not (spread > 0).all():
        raise ValueError(f"args.sigmas has {spread.min()}, but they are larger than 0")
    return MatchCriteria(partial(similarities, sigmas=spread), _areas, _ignored, _PER_CLASS)


def _areas(found: Detections) -> np.ndarray:
    """The areas of the boxes around the keypoints of each pose [found]."""
    if found.points is None:
        raise ValueError("there are no keypoints")
    places = found.points[..., :2]
    return boxes.areas(np.concatenate([places.min(1), places.max(1)], axis=-1))


def _ignored(truth: Boxes) -> np.ndarray:
    """Groups, and objects without a labelled keypoint [annotated]."""
    if truth.points is None:
        return truth.crowd
    return np.asarray(truth.crowd | ~(truth.points[..., 2] > 0).any(1))


def _pictures(
    outputs: Outputs, labels: np.ndarray, head: Head, kinds: int, limits: DetectionLimits
) -> Iterator[Picture]:
    """Raises UnknownName (the head), ValueError (outputs that do not fit it)."""
    count = (labels.shape[-1] - COLUMNS) // 3
    name = _recognised(outputs, count) if head == "auto" else head
    if name not in _HEADS:
        raise unknown_name("head", name, ("auto", *_HEADS))
    try:
        candidates = list(_HEADS[name](outputs, kinds, count))
    except (KeyError, IndexError) as error:
        raise ValueError(f"head {name} does not fit the outputs: {_shown(outputs)}") from error
    suppress = None if name == "yolo_nms" else detector_heads.suppressed
    found = (detector_heads.limited(one, limits, suppress) for one in candidates)
    return detection.placed(found, labels)


def _recognised(outputs: Outputs, count: int) -> str:
    """The head by the names and shapes of the outputs. Raises ValueError if they do not tell."""
    if {*_CORNERS} <= outputs.keys():
        return "corners"
    whole = next(iter(outputs.values()))
    if whole.ndim != 3:
        raise ValueError(f"no known head: {_shown(outputs)}; name it in args.head")
    return "yolo_nms" if whole.shape[2] in (6 + 2 * count, 6 + 3 * count) else "yolo"


def _yolo(outputs: Outputs, kinds: int, count: int) -> Iterator[Detections]:
    for one in next(iter(outputs.values())):
        rows = one.T
        points = _points(rows[:, 4 + kinds :], count, f"{kinds} classes")
        yield detector_heads.per_class(boxes.corners(rows[:, :4]), rows[:, 4 : 4 + kinds], points)


def _yolo_nms(outputs: Outputs, kinds: int, count: int) -> Iterator[Detections]:
    for one in next(iter(outputs.values())):
        points = _points(one[:, 6:], count, "6 numbers of the box")
        yield Detections(one[:, :4], one[:, 4], one[:, 5].astype(np.int64), points)


def _corners(outputs: Outputs, kinds: int, count: int) -> Iterator[Detections]:
    named = (outputs[name] for name in _CORNERS)
    for corners, scores, labels, keypoints in zip(*named, strict=True):
        points = _points(keypoints.reshape(len(keypoints), -1), count, "boxes of their own")
        yield Detections(corners, scores, labels.astype(np.int64), points)


def _points(flat: np.ndarray, count: int, beside: str) -> np.ndarray:
    """Keypoints [poses, count, 3] from 2 or 3 numbers each; one without a probability is sure.
    Raises ValueError for another number of them."""
    if flat.shape[1] not in (2 * count, 3 * count):
        raise ValueError(
            f"beside {beside} the output has {flat.shape[1]} numbers, and not 2 or 3 for each of "
            f"{count} annotated keypoints (args.kinds: the number of classes)"
        )
    points = flat.reshape(len(flat), count, -1)
    sure = np.ones((*points.shape[:2], 1), points.dtype)
    return np.concatenate([points, sure], axis=-1) if points.shape[-1] == 2 else points


def _shown(outputs: Outputs) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())


def _shapes(frame: Frame, objects: Detections | Boxes) -> tuple[Shape, ...]:
    """The boxes with the keypoints that are labelled, or likely."""
    least = 0 if isinstance(objects, Boxes) else _DRAWN
    lines = detection.outlines(frame, objects.corners)
    points = objects.points if objects.points is not None else np.zeros((len(lines), 0, 3))
    return tuple(
        Shape(int(kind), line, frame.to_input(own[own[:, 2] > least, :2]))
        for kind, line, own in zip(objects.classes, lines, points, strict=True)
    )


_HEADS: Mapping[str, Callable[[Outputs, int, int], Iterator[Detections]]] = MappingProxyType(
    {"yolo": _yolo, "yolo_nms": _yolo_nms, "corners": _corners}
)
