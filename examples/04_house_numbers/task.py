"""Top-1 accuracy on pictures with digits of the held-out half."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scenes import digits, draw

METRIC = "top1"


def samples() -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Batches of a feed {"image": float32 [batch, 3, 96, 96]} and labels, int64 [batch]."""
    images, labels = digits(1)
    for seed, start in enumerate(range(0, len(images), 32)):
        batch = slice(start, start + 32)
        yield {"image": draw(images[batch], 1_000 + seed)}, labels[batch]


def score(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    """1.0 where the highest logit is the label's, else 0.0: float64 [batch]."""
    (logits,) = outputs.values()  # [batch, 10]
    return (logits.argmax(axis=1) == labels).astype(np.float64)
