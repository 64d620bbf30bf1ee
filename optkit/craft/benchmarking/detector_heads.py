"""What detectors return → detections in the pixels of the input.

    yolo       [batch, 4 + classes, anchors]: centre and sides in pixels, then a probability per
               class (Ultralytics v8, v9, 11, 12)
    yolov5     [batch, anchors, 5 + classes]: centre and sides in pixels, the probability of an
               object, then of each class (YOLOv5, YOLOv7)
    yolo_nms   [batch, detections, 6]: corners in pixels, score, class (v10, 26, `nms=True`)
    detr       logits [batch, queries, classes + 1], the last class is "nothing"; pred_boxes
               [batch, queries, 4], centre and sides as shares of the input (DETR, YOLOS)
    rt_detr    the same with a probability of its own per class, and no class for nothing (RT-DETR,
               Deformable DETR, D-FINE)
    corners    boxes [batch, detections, 4] in pixels, scores and labels [batch, detections]

With masks (YOLO-seg), coefficients of prototypes stand after the classes, one for each channel of a
second output [batch, prototypes, height, width]. They are left out.

Those of YOLO without suppression and `corners` get it here; the sets of the DETR family need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from optkit.craft.benchmarking import boxes
from optkit.craft.benchmarking.average_precision import Detections
from optkit.facts.errors import unknown_name

Outputs = Mapping[str, np.ndarray]
Head = Literal["auto", "yolo", "yolov5", "yolo_nms", "detr", "rt_detr", "corners"]
COORDINATES = 4
"""In an output of three axes with boxes and scores, the first channels are the box."""
_MOST_CANDIDATES = 30_000  # before suppression, as in Ultralytics' validation
_LARGEST_SCORE = 16.0  # a probability is at most 1; a logit of 16 is one of 1 - 1e-7
_LOGITS, _BOXES = "logits", "pred_boxes"
_CORNERS = ("boxes", "scores", "labels")


@dataclass(frozen=True)
class DetectionLimits:
    """`confidence`: the least score of a detection; `overlap`: that above which suppression drops a
    detection of the same class; `detections`: at most so many per picture."""

    confidence: float
    overlap: float
    detections: int


def detections(
    outputs: Outputs, sizes: np.ndarray, head: Head, limits: DetectionLimits
) -> Iterator[Detections]:
    """The detections of each picture of a batch, in the pixels of the input. `sizes`: width and
    height of the input [batch, 2].

    Raises UnknownName (the head), ValueError (outputs that do not fit it).
    """
    name = recognised(outputs) if head == "auto" else head
    if name not in _HEADS:
        raise unknown_name("head", name, ("auto", *_HEADS))
    try:
        candidates = _HEADS[name](outputs, sizes)
    except (KeyError, IndexError) as error:
        shapes = ", ".join(f"{key} {list(array.shape)}" for key, array in outputs.items())
        raise ValueError(f"head {name} does not fit the outputs: {shapes}") from error
    for found in candidates:
        yield limited(found, limits, None if name in _SETS else suppressed)


def recognised(outputs: Outputs) -> str:
    """The head by the names and shapes of the outputs. Raises ValueError if they do not tell."""
    if {*_CORNERS} <= outputs.keys():
        return "corners"
    if _BOXES in outputs:
        raise ValueError(
            "logits and pred_boxes do not tell whether a class stands for nothing: name the head "
            "in args.head, detr (DETR, YOLOS: softmax) or rt_detr (RT-DETR, D-FINE: sigmoid)"
        )
    whole = next(iter(outputs.values()))
    if whole.ndim == 3:
        _, rows, columns = whole.shape
        if columns == 6 + _coefficients(outputs) and rows <= 1000:
            return "yolo_nms"
        if rows < columns:
            return "yolo"
        return "yolov5"
    shapes = ", ".join(f"{key} {list(array.shape)}" for key, array in outputs.items())
    raise ValueError(f"the outputs are those of no known head: {shapes}; name it in args.head")


def _yolo(outputs: Outputs, sizes: np.ndarray) -> Iterator[Detections]:
    whole = next(iter(outputs.values()))
    end = whole.shape[1] - _coefficients(outputs)
    for one in whole:
        yield per_class(boxes.corners(one[:4].T), _scores(one[4:end].T))


def _yolov5(outputs: Outputs, sizes: np.ndarray) -> Iterator[Detections]:
    whole = next(iter(outputs.values()))
    end = whole.shape[2] - _coefficients(outputs)
    for one in whole:
        yield per_class(boxes.corners(one[:, :4]), one[:, 4:5] * _scores(one[:, 5:end]))


def _coefficients(outputs: Outputs) -> int:
    """The number of mask coefficients of each box; 0 without masks."""
    others = list(outputs.values())[1:]
    return others[0].shape[1] if len(others) == 1 and others[0].ndim == 4 else 0


def _scores(scores: np.ndarray) -> np.ndarray:
    """The scores of classes. Raises ValueError for coordinates in pixels."""
    if (most := float(scores.max(initial=0.0))) > _LARGEST_SCORE:
        raise ValueError(
            f"a number after the boxes is {most:.3g}, which is no score of a class but a "
            "coordinate in pixels: a model with keypoints is evaluated by the task pose"
        )
    return scores


def _yolo_nms(outputs: Outputs, sizes: np.ndarray) -> Iterator[Detections]:
    for one in next(iter(outputs.values())):
        yield Detections(one[:, :4], one[:, 4], one[:, 5].astype(np.int64))


def _detr(outputs: Outputs, sizes: np.ndarray) -> Iterator[Detections]:
    logits = outputs[_LOGITS].astype(np.float64)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    scores = (powers / powers.sum(-1, keepdims=True))[..., :-1]
    return _of_queries(scores, outputs[_BOXES], sizes)


def _rt_detr(outputs: Outputs, sizes: np.ndarray) -> Iterator[Detections]:
    scores = 1 / (1 + np.exp(-outputs[_LOGITS].astype(np.float64)))
    return _of_queries(scores, outputs[_BOXES], sizes)


def _of_queries(
    scores: np.ndarray, relative: np.ndarray, sizes: np.ndarray
) -> Iterator[Detections]:
    for values, shares, size in zip(scores, relative, sizes, strict=True):
        yield per_class(boxes.corners(shares) * np.tile(size, 2), values)


def _corners(outputs: Outputs, sizes: np.ndarray) -> Iterator[Detections]:
    named = (outputs[name] for name in _CORNERS)
    for corners, scores, labels in zip(*named, strict=True):
        yield Detections(corners, scores, labels.astype(np.int64))


def per_class(
    corners: np.ndarray, scores: np.ndarray, points: np.ndarray | None = None
) -> Detections:
    """A detection for each box and class [boxes, classes], the best ones first. `points`: of each
    box, as in `Detections`."""
    flat = scores.ravel()
    most = min(_MOST_CANDIDATES, len(flat))
    best = np.argpartition(-flat, most - 1)[:most] if most < len(flat) else np.arange(most)
    box, kind = np.divmod(best, scores.shape[1])
    return Detections(corners[box], flat[best], kind, None if points is None else points[box])


def suppressed(found: Detections, limits: DetectionLimits) -> np.ndarray:
    """The numbers of the detections that non-maximum suppression of upright boxes keeps."""
    return boxes.suppressed(
        found.corners, found.scores, found.classes, limits.overlap, limits.detections
    )


def limited(
    found: Detections,
    limits: DetectionLimits,
    suppress: Callable[[Detections, DetectionLimits], np.ndarray] | None,
) -> Detections:
    """The detections that are sure enough, by falling score. `suppress`: the numbers of those that
    are kept; None: they need no suppression."""
    sure = found.chosen(np.flatnonzero(found.scores >= limits.confidence))
    points = None if sure.points is None else sure.points.astype(np.float64)
    exact = Detections(
        sure.corners.astype(np.float64),
        sure.scores.astype(np.float64),
        sure.classes.astype(np.int64),
        points,
    )
    if suppress is None:
        return exact.chosen(np.argsort(-exact.scores, kind="stable")[: limits.detections])
    return exact.chosen(suppress(exact, limits))


_HEADS: Mapping[str, Callable[[Outputs, np.ndarray], Iterator[Detections]]] = MappingProxyType(
    {
        "yolo": _yolo,
        "yolov5": _yolov5,
        "yolo_nms": _yolo_nms,
        "detr": _detr,
        "rt_detr": _rt_detr,
        "corners": _corners,
    }
)
_SETS = frozenset({"yolo_nms", "detr", "rt_detr"})
"""Heads whose detections need no suppression."""
