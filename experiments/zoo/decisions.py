"""What each model decides, and how often two runs decide the same.

Each function takes the outputs of the model as shipped and of another form for the same sample, and
gives (same, all): decisions that agree, and decisions. For sets of things found (boxes, notes) it
is the F1 score: twice the matches, and the things found by both together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy import ndimage

Array = np.ndarray
Outputs = list[Array]
Box = tuple[int, float, float, float, float]  # class, left, top, right, bottom


def label(ours: Outputs, theirs: Outputs) -> tuple[int, int]:
    """The largest value of each row."""
    same = ours[0].argmax(-1) == theirs[0].argmax(-1)
    return int(same.sum()), same.size


def voice(ours: Outputs, theirs: Outputs) -> tuple[int, int]:
    """Is the probability of speech of a frame above 0.5."""
    same = (ours[0] > 0.5) == (theirs[0] > 0.5)
    return int(same.sum()), same.size


def scores(ours: Outputs, theirs: Outputs) -> tuple[int, int]:
    """Is each score within 0.1 of the other; the scale goes from 1 to 5."""
    same = np.abs(ours[0] - theirs[0]) <= 0.1
    return int(same.sum()), same.size


def text(ours: Outputs, theirs: Outputs) -> tuple[int, int]:
    """Are all characters of the line the same, decoded greedily as CTC does."""
    same = [read(one) == read(other) for one, other in zip(ours[0], theirs[0], strict=True)]
    return sum(same), len(same)


def read(row: Array) -> tuple[int, ...]:
    """The characters of [steps, characters], without repeats and without the blank, which is 0."""
    best = row.argmax(-1)
    kept = np.append(True, best[1:] != best[:-1]) & (best != 0)
    return tuple(best[kept].tolist())


def notes(ours: Outputs, theirs: Outputs) -> tuple[int, int]:
    """F1 of the cells of time and key, [frames, 88], whose note is above 0.3."""
    # The outputs are in the order of the graph: onsets, notes, contours.
    one, other = ours[1] > 0.3, theirs[1] > 0.3
    return 2 * int((one & other).sum()), int(one.sum() + other.sum())


def text_regions(ours: Outputs, theirs: Outputs) -> tuple[int, int]:
    """F1 of the connected regions above 0.3, as boxes."""
    return matches(list(_regions(ours[0])), list(_regions(theirs[0])))


def _regions(output: Array) -> Iterator[Box]:
    labels, _ = ndimage.label(output[0, 0] > 0.3)
    for place in ndimage.find_objects(labels):
        rows, columns = place
        if (rows.stop - rows.start) >= 3 and (columns.stop - columns.start) >= 3:
            yield 0, columns.start, rows.start, columns.stop, rows.stop


def boxes_yolo(ours: Outputs, theirs: Outputs) -> tuple[int, int]:
    """F1 of the boxes of [1, 4 + classes, boxes] with a score of at least 0.2."""
    return matches(_yolo(ours[0][0].T), _yolo(theirs[0][0].T))


def _yolo(rows: Array) -> list[Box]:
    middle, size = rows[:, :2], rows[:, 2:4]
    return suppressed(np.hstack([middle - size / 2, middle + size / 2]), rows[:, 4:], 0.2)


def layout_boxes(ours: Outputs, theirs: Outputs) -> tuple[int, int]:
    """F1 of the boxes of PicoDet with a score above 0.4."""
    return matches(_layout(ours), _layout(theirs))


def _layout(outputs: Outputs) -> list[Box]:
    boxes, found = [], []
    for stride, score, sides in zip((8, 16, 32, 64), outputs[:4], outputs[4:], strict=True):
        across, down = -(-608 // stride), -(-800 // stride)
        x, y = np.meshgrid(np.arange(across), np.arange(down))
        middle = (np.stack([x.ravel(), y.ravel()], -1) + 0.5) * stride
        spread = np.exp(sides[0].reshape(-1, 4, 8))
        distance = (spread / spread.sum(-1, keepdims=True)) @ np.arange(8) * stride
        boxes.append(np.hstack([middle - distance[:, :2], middle + distance[:, 2:]]))
        found.append(score[0])
    return suppressed(np.concatenate(boxes), np.concatenate(found), 0.4)


def suppressed(boxes: Array, scores: Array, least: float) -> list[Box]:
    """Those with a score of `least` or more that overlap no better one of their class by half."""
    kept: list[Box] = []
    best, score = scores.argmax(-1), scores.max(-1)
    for at in np.argsort(-score):
        if score[at] < least:
            break
        box = int(best[at]), *map(float, boxes[at])
        if all(box[0] != other[0] or overlap(box, other) < 0.5 for other in kept):
            kept.append(box)
    return kept


def overlap(one: Box, other: Box) -> float:
    """Intersection over union."""
    width = min(one[3], other[3]) - max(one[1], other[1])
    height = min(one[4], other[4]) - max(one[2], other[2])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[3] - box[1]) * (box[4] - box[2]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def matches(ours: list[Box], theirs: list[Box]) -> tuple[int, int]:
    """F1 of boxes that agree in class and overlap by half, each used once."""
    left, same = list(theirs), 0
    for box in ours:
        best = max(left, key=lambda other: overlap(box, other), default=None)
        if best is not None and best[0] == box[0] and overlap(box, best) >= 0.5:
            left.remove(best)
            same += 1
    return 2 * same, len(ours) + len(theirs)


DECISIONS: dict[str, Callable[[Outputs, Outputs], tuple[int, int]]] = {
    function.__name__: function
    for function in (label, voice, scores, text, notes, text_regions, boxes_yolo, layout_boxes)
}
