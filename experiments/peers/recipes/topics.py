"""Topic accuracy of W3: which fixed prototype the mean of the real tokens is nearest to.

The classifier is not trained: 48 random unit vectors, the network learns to point at them. So a
score needs nothing but the outputs, the class and the number of real tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

METRIC = "top1"
TOPICS = 48  # the packages and modules of the standard library with the most text
WIDTH = 384


def samples(path: str, count: int = 512) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Ids and masks int64 [batch, 128]; labels int64 [batch, 2]: class, number of real tokens."""
    with np.load(path) as stored:
        ids = stored["test.input_ids"][:count]
        mask = stored["test.attention_mask"][:count]
        labels = np.stack([stored["labels"][:count], mask.sum(1)], axis=1)
    for start in range(0, count, 16):
        batch = slice(start, start + 16)
        yield {"input_ids": ids[batch], "attention_mask": mask[batch]}, labels[batch]


def score(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    """1.0 where the nearest prototype is the label's, else 0.0: float64 [batch]."""
    tokens = outputs["embeddings"]  # [batch, 128, 384]
    topics = prototypes()
    means = np.stack([row[:n].mean(0) for row, n in zip(tokens, labels[:, 1], strict=True)])
    return ((means @ topics.T).argmax(1) == labels[:, 0]).astype(np.float64)


def prototypes() -> np.ndarray:
    """Unit vectors, one per topic: float32 [48, 384]."""
    drawn = np.random.default_rng(0).standard_normal((TOPICS, WIDTH))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
