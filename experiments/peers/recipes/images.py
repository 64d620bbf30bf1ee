"""Top-1 accuracy of W1 and W2 on the held-out digits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

METRIC = "top1"


def samples(path: str, count: int = 629) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Images float32 [batch, 3, 32, 32] with labels int64 [batch]."""
    with np.load(path) as stored:
        images, labels = stored["test.input"][:count], stored["labels"][:count]
    for start in range(0, count, 32):
        yield {"input": images[start : start + 32]}, labels[start : start + 32]


def score(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    """1.0 where the highest logit is the label's, else 0.0: float64 [batch]."""
    return (outputs["logits"].argmax(axis=1) == labels).astype(np.float64)
