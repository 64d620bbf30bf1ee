"""Calibration samples: 256 pictures with digits of the training half."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scenes import digits, draw


def samples() -> Iterator[dict[str, np.ndarray]]:
    """Feeds {"image": float32 [batch, 3, 96, 96]} in [0, 1]."""
    images, _ = digits(0)
    chosen = images[np.arange(256) * 556 % len(images)]  # spread evenly over the writers
    for seed, start in enumerate(range(0, len(chosen), 32)):
        yield {"image": draw(chosen[start : start + 32], seed)}
