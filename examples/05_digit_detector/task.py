"""Mean average precision on scenes with digits of the test part, as the task `detection` computes
it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from digit_scenes import MOST, SIZE, Part, feed, scene

from optkit.benchmarking.detection import combine, drawn, each, metric, score, slices, weighted
from optkit.data import frames

__all__ = ["combine", "drawn", "each", "metric", "samples", "score", "slices", "weighted"]

BATCH = 32


def samples(
    part: Part = "test", scenes: int = 512
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Batches of a feed {"image": float32 [batch, 3, 128, 128]} and the labels of `frames`, float64
    [batch, 1 + boxes, 8]."""
    for start in range(0, scenes, BATCH):
        batch = [scene(part, number) for number in range(start, min(start + BATCH, scenes))]
        corners, labels = [one.corners for one in batch], [one.labels for one in batch]
        yield feed(batch), frames.labels(corners, labels, (SIZE, SIZE), MOST)
