"""Calibration samples: 256 scenes with digits of the training part, not seen in training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from digit_scenes import feed, scene

FIRST = 1_000_000  # beyond the numbers that training draws
BATCH = 32


def samples() -> Iterator[dict[str, np.ndarray]]:
    """Feeds {"image": float32 [batch, 3, 128, 128]} in [0, 1]."""
    for start in range(FIRST, FIRST + 256, BATCH):
        yield feed([scene("train", number) for number in range(start, start + BATCH)])
