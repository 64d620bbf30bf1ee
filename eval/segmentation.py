"""Mean IoU (or Dice) of a segmentation on pictures with masks.

eval: {task: segmentation, args: {path: validation, preprocessing: imagenet, size: 512}}
eval: {task: segmentation, args: {path: validation/images, masks: validation/labels, ignore: 0}}
"""

from __future__ import annotations

import numpy as np

from optkit.benchmarking import masks
from optkit.benchmarking.average_precision import Part
from optkit.benchmarking.drawings import Regions
from optkit.benchmarking.masks import Measure
from optkit.data.segmentation import IGNORED, samples

__all__ = ["drawn", "each", "metric", "samples", "score", "weighted"]


def metric(measure: Measure = "miou") -> str:
    """What the score is called."""
    return measure


def score(
    outputs: dict[str, np.ndarray],
    labels: np.ndarray,
    kinds: int | None = None,
    ignore: int = IGNORED,
) -> np.ndarray:
    """The pixels of each picture and class that are right, found and annotated: float64 [batch,
    classes, 3].

    kinds: the number of classes, for a model that returns classes (default: that of its logits).
    ignore: the value of pixels of a mask that do not count.
    """
    found = masks.classes(outputs, *labels.shape[1:])
    return masks.overlaps(found, labels, kinds or masks.count(outputs), ignore)


def weighted(scores: np.ndarray, measure: Measure = "miou") -> Part:
    """How often each picture counts → the mean over classes of IoU (miou) or Dice (dice), from the
    pixels of all pictures."""
    return masks.mean_over_classes(scores, measure)


def each(scores: np.ndarray, measure: Measure = "miou") -> np.ndarray:
    """The metric of each picture alone [pictures]; 0 for one without a pixel that counts."""
    return masks.alone(scores, measure)


def drawn(
    outputs: dict[str, np.ndarray], labels: np.ndarray, ignore: int = IGNORED
) -> list[Regions]:
    """The classes of the pixels of each picture that count."""
    found = masks.classes(outputs, *labels.shape[1:])
    pairs = zip(found, labels, strict=True)
    return [Regions(ours == truth, truth != ignore) for ours, truth in pairs]
