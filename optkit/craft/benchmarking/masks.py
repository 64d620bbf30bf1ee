"""Segmentation in plain numpy: classes per pixel, their overlaps, mean IoU and Dice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

Measure = Literal["miou", "dice"]


def per_pixel(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The first output with three or four axes. Raises ValueError if there is none."""
    for array in outputs.values():
        if array.ndim in (3, 4):
            return array
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
    raise ValueError(f"no output has a value per pixel: {shapes}")


def count(outputs: Mapping[str, np.ndarray]) -> int:
    """The number of classes of the logits. Raises ValueError for a model that returns classes."""
    whole = per_pixel(outputs)
    if whole.ndim == 3:
        raise ValueError("the model returns classes: give their number in args.kinds")
    return max(int(whole.shape[1]), 2)


def classes(outputs: Mapping[str, np.ndarray], height: int, width: int) -> np.ndarray:
    """The class of each pixel [batch, height, width], from logits [batch, classes, h, w], which are
    resized bilinearly; logits of one class, which is there where they are positive; or classes
    [batch, h, w], resized to the nearest pixel. Raises ValueError without such an output."""
    whole = per_pixel(outputs)
    if whole.ndim == 3:
        rows, columns = (
            np.arange(wanted) * size // wanted
            for size, wanted in zip(whole.shape[1:], (height, width), strict=True)
        )
        return np.asarray(whole[:, rows][:, :, columns].astype(np.int64))
    resized = bilinear(whole, height, width)
    if resized.shape[1] == 1:
        return np.asarray((resized[:, 0] > 0).astype(np.int64))
    return np.asarray(resized.argmax(1))


def bilinear(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """Values [batch, channels, h, w] at another size in float32, with the centres of pixels at
    halves and the border repeated: torch's `interpolate` with align_corners=False."""
    resized = values.astype(np.float32, copy=False)
    for axis, wanted in ((2, height), (3, width)):
        size = resized.shape[axis]
        if size == wanted:
            continue
        at = np.clip((np.arange(wanted) + 0.5) * size / wanted - 0.5, 0, size - 1)
        before = np.floor(at).astype(np.int64)
        after = np.minimum(before + 1, size - 1)
        share = (at - before).astype(np.float32)
        share = share[:, None] if axis == 2 else share
        first, second = (np.take(resized, places, axis) for places in (before, after))
        resized = first + (second - first) * share
    return resized


def overlaps(found: np.ndarray, truth: np.ndarray, kinds: int, ignored: int) -> np.ndarray:
    """For each picture and class the pixels that both have, that were found, and that are
    annotated: float64 [batch, classes, 3], from classes per pixel [batch, h, w].

    Raises ValueError for an annotated class that the model does not have.
    """
    rows = np.zeros((len(found), kinds, 3))
    for row, ours, theirs in zip(rows, found, truth, strict=True):
        counts = theirs != ignored
        ours, theirs = ours[counts], theirs[counts].astype(np.int64)
        if theirs.size and not 0 <= theirs.min() <= theirs.max() < kinds:
            raise ValueError(
                f"a mask has the class {theirs.max()}, but the output has {kinds} classes "
                f"(args.ignore: the value of pixels that do not count, now {ignored})"
            )
        for column, pixels in enumerate((ours[ours == theirs], ours, theirs)):
            row[:, column] = np.bincount(pixels, minlength=kinds)[:kinds]
    return rows


def mean_over_classes(rows: np.ndarray, measure: Measure) -> Callable[[np.ndarray], float]:
    """How often each picture counts → mean IoU or Dice over the classes that occur, from the pixels
    of all pictures together, `overlaps` [pictures, classes, 3]."""
    flat = rows.reshape(len(rows), -1)

    def of(counts: np.ndarray) -> float:
        both, found, annotated = (counts @ flat).reshape(-1, 3).T
        whole = found + annotated - (both if measure == "miou" else 0)
        part = both if measure == "miou" else 2 * both
        occurs = whole > 0
        return float((part[occurs] / whole[occurs]).mean()) if occurs.any() else float("nan")

    return of


def alone(rows: np.ndarray, measure: Measure) -> np.ndarray:
    """Mean IoU or Dice of each picture by itself [pictures]; 0 for one without a pixel that counts.
    Arguments as for `mean_over_classes`."""
    once = np.ones(1)
    parts = (mean_over_classes(row[None], measure) for row in rows)
    return np.asarray(np.nan_to_num([of(once) for of in parts]))
