"""Average precision of detectors as COCO defines it, from one row of numbers per picture.

`matched` compares the detections of a picture with its annotated boxes; `precision` computes the
metric of all pictures. The definitions are those of pycocotools' COCOeval: ten thresholds of the
overlap from 0.5 to 0.95, 101 points of recall, at most 100 detections per picture and class,
boxes of crowds and boxes of other sizes are neither right nor wrong. Both agree with it to 1e-6.

A row per detection holds its class, its score, and for each range of areas the state at the ten
thresholds, in base 3: 0 wrong, 1 right, 2 does not count. A row per annotated box holds its class,
-1 in place of a score, and for each range whether it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import numpy as np

from optkit.craft.benchmarking import boxes
from optkit.ground.data.frames import NONE, Boxes

THRESHOLDS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0.0, 1.0, 101)
AREAS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "all": (0.0, 1e10),
        "small": (0.0, 32.0**2),
        "medium": (32.0**2, 96.0**2),
        "large": (96.0**2, 1e10),
    }
)
"""Ranges of areas in pixels²."""
_PER_CLASS = 100  # detections of one class in one picture
_BASE = 3
_WRONG, _RIGHT, _IGNORED = range(_BASE)
_WEIGHTS = _BASE ** np.arange(len(THRESHOLDS))
COLUMNS = 2 + len(AREAS)
_ANNOTATED = -1.0  # in place of a score


@dataclass(frozen=True)
class Detections:
    """What a detector found in a picture: `corners` [n, 4] in the pixels of the picture, `scores`
    [n], `classes` [n]; `points` [n, points, 3] or None, as those of `frames.Boxes`."""

    corners: np.ndarray
    scores: np.ndarray
    classes: np.ndarray
    points: np.ndarray | None = None

    def chosen(self, index: np.ndarray) -> Detections:
        """The detections of these numbers."""
        points = None if self.points is None else self.points[index]
        return Detections(self.corners[index], self.scores[index], self.classes[index], points)


@dataclass(frozen=True)
class MatchCriteria:
    """How detections are compared with annotated objects. `overlaps`: [found, annotated], from 0 to
    1; `areas`: of detections [found], in pixels²; `ignored`: which annotated objects do not count
    [annotated]; `per_class`: at most so many detections of a class count in a picture."""

    overlaps: Callable[[Detections, Boxes], np.ndarray]
    areas: Callable[[Detections], np.ndarray]
    ignored: Callable[[Boxes], np.ndarray]
    per_class: int


def _of_boxes(found: Detections, truth: Boxes) -> np.ndarray:
    return boxes.overlaps(found.corners, truth.corners, truth.crowd)


BOXES = MatchCriteria(
    _of_boxes, lambda found: boxes.areas(found.corners), lambda truth: truth.crowd, _PER_CLASS
)
"""Of upright boxes."""


def matched(
    found: Detections, truth: Boxes, rows: int, likeness: MatchCriteria = BOXES
) -> np.ndarray:
    """The rows of one picture, float64 [rows, 6]; rows of class -1 fill up. `rows`: at least the
    number of detections and annotated objects."""
    filled = np.full((rows, COLUMNS), NONE)
    at = 0
    for kind in np.union1d(found.classes, truth.classes):
        order = np.flatnonzero(found.classes == kind)
        order = order[np.argsort(-found.scores[order], kind="stable")][: likeness.per_class]
        ours = np.flatnonzero(truth.classes == kind)
        states, counted = _of_class(found.chosen(order), truth.chosen(ours), likeness)
        part = filled[at : at + len(order)]
        part[:, 0], part[:, 1], part[:, 2:] = kind, found.scores[order], states
        at += len(order)
        part = filled[at : at + len(ours)]
        part[:, 0], part[:, 1], part[:, 2:] = kind, _ANNOTATED, counted
        at += len(ours)
    return filled


def _of_class(
    found: Detections, truth: Boxes, likeness: MatchCriteria
) -> tuple[np.ndarray, np.ndarray]:
    """For each range of areas: the states of the detections [found, ranges] in base 3, and whether
    each annotated object counts [annotated, ranges]."""
    crowd, sizes, never = truth.crowd, truth.areas, likeness.ignored(truth)
    shared, own = likeness.overlaps(found, truth), likeness.areas(found)
    states = np.zeros((len(own), len(AREAS)))
    counted = np.zeros((len(sizes), len(AREAS)))
    for column, (low, high) in enumerate(AREAS.values()):
        ignored = never | (sizes < low) | (sizes > high)
        counted[:, column] = ~ignored
        outside = (own < low) | (own > high)
        states[:, column] = _states(shared, ignored, crowd, outside) @ _WEIGHTS
    return states, counted


def _states(
    shared: np.ndarray, ignored: np.ndarray, crowd: np.ndarray, outside: np.ndarray
) -> np.ndarray:
    """The state of each detection at each threshold [found, thresholds]."""
    states = np.repeat(np.where(outside, _IGNORED, _WRONG)[:, None], len(THRESHOLDS), axis=1)
    row, column, truth = _matches(shared, ignored, crowd, THRESHOLDS)
    states[row, column] = np.where(ignored[truth], _IGNORED, _RIGHT)
    return states


def _matches(
    shared: np.ndarray, ignored: np.ndarray, crowd: np.ndarray, thresholds: np.ndarray
) -> np.ndarray:
    """Which annotated object each detection gets, [3, matches]: the detection, the number of the
    threshold (the first is the lowest), the object. Detections choose in the order of their scores;
    objects that do not count are chosen last, and a crowd any number of times."""
    order = np.argsort(ignored, kind="stable")
    shared, ignored, crowd = shared[:, order], ignored[order], crowd[order]
    near = np.flatnonzero(shared.max(1, initial=0.0) >= thresholds[0])
    matches: list[tuple[int, int, int]] = []
    for column, threshold in enumerate(thresholds):
        taken = np.zeros(len(order), bool)
        for row in near:
            best = _best(shared[row], min(threshold, 1 - 1e-10), taken & ~crowd, ignored)
            if best is not None:
                taken[best] = True
                matches.append((int(row), column, int(order[best])))
    return np.asarray(matches, np.int64).reshape(-1, 3).T


def _best(
    overlap: np.ndarray, threshold: float, taken: np.ndarray, ignored: np.ndarray
) -> int | None:
    """The box with the largest overlap, of equal ones the last; one that counts before one that
    does not. None if there is none."""
    for among in (~ignored, ignored):
        free = np.flatnonzero(among & ~taken & (overlap >= threshold))
        if len(free):
            return int(free[len(free) - 1 - np.argmax(overlap[free][::-1])])
    return None


def compact(rows: np.ndarray) -> np.ndarray:
    """The rows of all pictures [pictures, rows, 6] without those that are empty in all of them."""
    used = int((rows[:, :, 0] != NONE).sum(1).max(initial=1))
    return np.asarray(rows[:, :used])


def annotated(rows: np.ndarray, area: str = "all") -> list[int]:
    """The classes of the annotated boxes that count, in pictures [pictures, rows, 6]."""
    flat = rows.reshape(-1, COLUMNS)
    counts = (flat[:, 1] == _ANNOTATED) & (flat[:, 2 + list(AREAS).index(area)] == 1)
    return [int(kind) for kind in np.unique(flat[counts, 0])]


def partners(found: Detections, truth: Boxes, likeness: MatchCriteria = BOXES) -> np.ndarray:
    """For each detection [found] the number of the annotated object of its class that it gets at an
    overlap of 0.5, or -1."""
    partners = np.full(len(found.scores), -1)
    for kind in np.unique(found.classes):
        order = np.flatnonzero(found.classes == kind)
        order = order[np.argsort(-found.scores[order], kind="stable")]
        ours = np.flatnonzero(truth.classes == kind)
        objects = truth.chosen(ours)
        shared, ignored = likeness.overlaps(found.chosen(order), objects), likeness.ignored(objects)
        row, _, box = _matches(shared, ignored, objects.crowd, THRESHOLDS[:1])
        partners[order[row]] = ours[box]
    return partners


Part = Callable[[np.ndarray], float]
"""How often each picture counts [pictures] → the metric; NaN if it is not defined."""


def precision(
    rows: np.ndarray, *, thresholds: slice = slice(None), area: str = "all", kind: int | None = None
) -> Part:
    """The mean average precision of pictures [pictures, rows, 6], over the classes that are
    annotated in them. `thresholds`: which of the ten; `kind`: of one class only.

    The result is a function of how often each picture counts, so that a bootstrap sorts the
    detections once.
    """
    column = 2 + list(AREAS).index(area)
    picture, row = np.nonzero(rows[:, :, 0] != NONE)
    flat = rows[picture, row]
    if kind is not None:
        chosen = flat[:, 0] == kind
        picture, flat = picture[chosen], flat[chosen]
    is_box = flat[:, 1] == _ANNOTATED
    truth, whose = flat[is_box & (flat[:, column] == 1)], picture[is_box & (flat[:, column] == 1)]
    found, origin = flat[~is_box], picture[~is_box]
    order = np.lexsort((-found[:, 1], found[:, 0]))  # stable: pictures in their order
    found, origin = found[order], origin[order]
    states = (found[:, column].astype(np.int64)[:, None] // _WEIGHTS[thresholds]) % _BASE
    classes = [
        _Class.of(states[found[:, 0] == one], origin[found[:, 0] == one], whose[truth[:, 0] == one])
        for one in np.unique(truth[:, 0])
    ]

    def of(counts: np.ndarray) -> float:
        means = [one.precision(counts) for one in classes]
        defined = [mean for mean in means if mean is not None]
        return float(np.mean(defined)) if defined else float("nan")

    return of


def alone(rows: np.ndarray, *, thresholds: slice = slice(None), area: str = "all") -> np.ndarray:
    """The mean average precision of each picture by itself [pictures]; 0 for one without a box that
    counts. Arguments as for `precision`."""
    once = np.ones(1)
    parts = (precision(row[None], thresholds=thresholds, area=area) for row in rows)
    return np.asarray(np.nan_to_num([of(once) for of in parts]))


@dataclass(frozen=True)
class _Class:
    """The detections of one class by falling score, ready for any number of resamples.

    The precision falls at a wrong detection and the recall does not rise there. So neither has to
    be known there, only how many wrong detections lie before each right one. `right`, `wrong`
    [rows, thresholds] and `origin` [rows], the picture, are those of the detections whose state
    differs between thresholds or is right. Of those that are wrong at all thresholds, there are
    only `before` [n], the number of the rows before it, and `missed` [n], its picture. `whose`: the
    picture of each annotated box.
    """

    right: np.ndarray
    wrong: np.ndarray
    origin: np.ndarray
    before: np.ndarray
    missed: np.ndarray
    whose: np.ndarray

    @classmethod
    def of(cls, states: np.ndarray, origin: np.ndarray, whose: np.ndarray) -> Self:
        right, wrong = states == _RIGHT, states == _WRONG
        always = wrong.all(1)
        rows = (right | wrong).any(1) & ~always
        before = np.cumsum(rows)[always]
        return cls(right[rows], wrong[rows], origin[rows], before, origin[always], whose)

    def precision(self, counts: np.ndarray) -> float | None:
        """The average precision, where each picture counts so often; None without a box."""
        whole = float(counts[self.whose].sum())
        if whole == 0:
            return None
        weights = counts[self.origin][:, None]
        always = np.bincount(self.before, counts[self.missed], minlength=len(weights) + 1)
        misses = self.wrong * weights + always[: len(weights), None]
        return float(_interpolated(self.right * weights, misses, whole).mean())


def _interpolated(hits: np.ndarray, misses: np.ndarray, whole: float) -> np.ndarray:
    """The precision at each of the 101 recalls for each threshold [thresholds, 101], from right
    detections [rows, thresholds] by falling score, and the wrong ones at and before each row.
    `whole`: the number of boxes."""
    right, wrong = hits.cumsum(0), misses.cumsum(0)
    recall = right / whole
    exact = right / (right + wrong + np.spacing(1))
    envelope = np.maximum.accumulate(exact[::-1], axis=0)[::-1]
    values = np.zeros((hits.shape[1], len(_RECALLS)))
    for column in range(hits.shape[1]):
        places = np.searchsorted(recall[:, column], _RECALLS, side="left")
        inside = places < len(recall)
        values[column, inside] = envelope[places[inside], column]
    return values
