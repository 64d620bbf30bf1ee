"""Oriented boxes in plain numpy: convex quadrilaterals [n, 4, 2], their areas and overlaps, and
non-maximum suppression."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optkit.craft.benchmarking import boxes


def corners(oriented: np.ndarray) -> np.ndarray:
    """Boxes [n, 5] as centre, sides and angle in radians (x, y, width, height, angle) → corners
    [n, 4, 2]. The angle turns the x axis towards the y axis, as that of Ultralytics does."""
    centre, half = oriented[:, None, :2], oriented[:, 2:4] / 2
    cosine, sine = np.cos(oriented[:, 4]), np.sin(oriented[:, 4])
    along = half[:, :1] * np.stack([cosine, sine], axis=1)
    across = half[:, 1:] * np.stack([-sine, cosine], axis=1)
    turns = np.stack([along + across, along - across, -along - across, -along + across], axis=1)
    return np.asarray(centre + turns)


def bounds(quads: np.ndarray) -> np.ndarray:
    """The upright boxes around them, x1, y1, x2, y2 [n, 4]."""
    return np.concatenate([quads.min(1), quads.max(1)], axis=-1)


def areas(quads: np.ndarray) -> np.ndarray:
    """Their areas [n]."""
    return np.asarray(np.abs(_doubled(quads)) / 2)


def overlaps(quads: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of every one [n, 4, 2] with every other one [m, 4, 2]: [n, m]."""
    found = np.zeros((len(quads), len(others)))
    if not found.size:
        return found
    first, second = np.nonzero(boxes.overlaps(bounds(quads), bounds(others)) > 0)
    shared = _shared(quads[first], others[second])
    whole = areas(quads)[first] + areas(others)[second] - shared
    found[first, second] = shared / np.where(whole > 0, whole, 1.0)
    return found


def suppressed(
    quads: np.ndarray, scores: np.ndarray, classes: np.ndarray, limit: float, most: int
) -> np.ndarray:
    """As `boxes.suppressed`, by the overlap of oriented boxes."""
    return boxes.merged(scores, classes, most, lambda chosen: _not_overlapped(quads[chosen], limit))


def _not_overlapped(quads: np.ndarray, limit: float) -> Iterator[int]:
    """The numbers of those [n, 4, 2] that no earlier one which is kept overlaps, in order."""
    upright, sizes, left = bounds(quads), areas(quads), np.arange(len(quads))
    while len(left):
        first, left = left[0], left[1:]
        yield int(first)
        # two of them share at most what their upright boxes share, and the smaller one
        start = np.maximum(upright[first, :2], upright[left, :2])
        stop = np.minimum(upright[first, 2:], upright[left, 2:])
        most = np.maximum(stop - start, 0.0).prod(1)
        most = np.minimum(most, np.minimum(sizes[first], sizes[left]))
        near = most > limit * (sizes[first] + sizes[left] - most)
        apart = ~near
        apart[near] = overlaps(quads[first][None], quads[left[near]])[0] <= limit
        left = left[apart]


def _shared(quads: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The area that each pair [pairs, 4, 2] shares [pairs].

    The corners of the common polygon are the corners of each one within the other one, and the
    crossings of their sides. A convex polygon has its corners by the angle around their mean.
    """
    middle = quads.mean(1, keepdims=True)  # near the origin the fewest digits are lost
    one, other = _positive(quads - middle), _positive(others - middle)
    crossings, cross = _crossings(one, other)
    points = np.concatenate([one, other, crossings], axis=1)
    valid = np.concatenate([_within(one, other), _within(other, one), cross], axis=1)
    count = np.maximum(valid.sum(1), 1)[:, None]
    mean = (points * valid[..., None]).sum(1) / count
    away = points - mean[:, None]
    angles = np.where(valid, np.arctan2(away[..., 1], away[..., 0]), np.inf)
    order = np.argsort(angles, axis=1)
    ordered = np.take_along_axis(away, order[..., None], axis=1)
    counts = np.take_along_axis(valid, order, axis=1)[..., None]
    closed = np.where(counts, ordered, np.where(counts[:, :1], ordered[:, :1], 0.0))
    return np.asarray(np.abs(_doubled(closed)) / 2)


def _doubled(polygons: np.ndarray) -> np.ndarray:
    """Twice their signed areas [n], from corners [n, corners, 2]."""
    return np.asarray(_cross(polygons, np.roll(polygons, -1, axis=1)).sum(1))


def _positive(quads: np.ndarray) -> np.ndarray:
    """With their corners in the order that makes the signed area positive."""
    return np.where(_doubled(quads)[:, None, None] < 0, quads[:, ::-1], quads)


def _within(points: np.ndarray, quads: np.ndarray) -> np.ndarray:
    """Whether each point [pairs, points, 2] lies in its quadrilateral [pairs, 4, 2]."""
    sides = np.roll(quads, -1, axis=1) - quads
    turns = _cross(sides[:, None], points[:, :, None] - quads[:, None])
    return np.asarray((turns >= 0).all(-1))


def _crossings(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each side of the one crosses each side of the other [pairs, 16, 2], and whether it
    does."""
    start, begin = one[:, :, None], other[:, None]
    along, across = (np.roll(each, -1, axis=1) - each for each in (one, other))
    along, across = along[:, :, None], across[:, None]
    slope = _cross(along, across)
    parallel = slope == 0
    slope = np.where(parallel, 1.0, slope)
    t, u = (_cross(begin - start, side) / slope for side in (across, along))
    cross = ~parallel & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1)
    points = start + t[..., None] * along
    return points.reshape(len(one), 16, 2), cross.reshape(len(one), 16)


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])
