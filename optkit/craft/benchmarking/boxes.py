"""Boxes in plain numpy: overlaps, and non-maximum suppression. Corners are x1, y1, x2, y2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice

import numpy as np


def corners(centred: np.ndarray) -> np.ndarray:
    """Boxes [..., 4] as centre and sides (x, y, width, height) → corners."""
    centre, half = centred[..., :2], centred[..., 2:4] / 2
    return np.concatenate([centre - half, centre + half], axis=-1)


def areas(boxes: np.ndarray) -> np.ndarray:
    """The areas of boxes [n, 4]; 0 for one whose sides are negative."""
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0)
    return np.asarray(sides.prod(1))


def overlaps(boxes: np.ndarray, others: np.ndarray, crowd: np.ndarray | None = None) -> np.ndarray:
    """Intersection over union of every box [n, 4] with every other one [m, 4]: [n, m]. Where the
    other one is a `crowd` [m], the intersection is divided by the area of the box alone (COCO)."""
    start = np.maximum(boxes[:, None, :2], others[None, :, :2])
    stop = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.maximum(stop - start, 0.0).prod(-1)
    own = areas(boxes)[:, None]
    whole = own + areas(others)[None] - shared
    if crowd is not None:
        whole = np.where(crowd[None], own, whole)
    return np.asarray(shared / np.where(whole > 0, whole, 1.0))


def suppressed(
    boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, limit: float, most: int
) -> np.ndarray:
    """Greedy non-maximum suppression within each class: the indices of the boxes that are kept, by
    falling score, at most `most`. A box is dropped if its overlap with a kept one of the same class
    is larger than `limit`."""
    return merged(scores, classes, most, lambda chosen: _not_overlapped(boxes[chosen], limit))


def merged(
    scores: np.ndarray, classes: np.ndarray, most: int, kept: Callable[[np.ndarray], Iterator[int]]
) -> np.ndarray:
    """The indices of the detections that are kept, by falling score, at most `most`. `kept`: which
    detections of a class, by falling score, are kept, as numbers among these."""
    order = np.argsort(-scores, kind="stable")
    kinds = classes[order]
    places = [np.flatnonzero(kinds == kind) for kind in np.unique(classes)]
    each = (map(place.__getitem__, kept(order[place])) for place in places)
    return order[list(islice(merge(*each), most))]


def _not_overlapped(boxes: np.ndarray, limit: float) -> Iterator[int]:
    """The numbers of the boxes [n, 4] that no earlier one which is kept overlaps, in order."""
    names = np.arange(len(boxes))
    left, top, right, bottom = boxes.T
    sizes = areas(boxes)
    while len(names):
        yield int(names[0])
        width = np.minimum(right, right[0]) - np.maximum(left, left[0])
        height = np.minimum(bottom, bottom[0]) - np.maximum(top, top[0])
        shared = np.maximum(width, 0.0) * np.maximum(height, 0.0)
        whole = sizes[0] + sizes - shared
        apart = shared / np.where(whole > 0, whole, 1.0) <= limit
        apart[0] = False
        left, top, right, bottom, sizes, names = (
            array[apart] for array in (left, top, right, bottom, sizes, names)
        )
