"""Top-1 accuracy on handwritten digits: the held-out half (odd indices) only.

The even half is for training and calibration (calibration/digits.py, which says where they are
from).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

METRIC = "top1"

_DIGITS = Path(__file__).parents[1] / "calibration" / "digits.npz"


def samples(size: int = 8) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yield the 898 held-out digits in batches: (feed, labels).

    Each feed is {"image": float32 [batch, 1, size, size]} in [0, 1], bilinearly upscaled from 8×8;
    labels are int64 [batch].
    """
    with np.load(_DIGITS) as digits:
        images, labels = digits["images"][1::2], digits["labels"][1::2].astype(np.int64)
    for start in range(0, len(images), 32):
        batch = slice(start, start + 32)
        yield {"image": upscale(images[batch] / 16, size)[:, None]}, labels[batch]


def score(outputs: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
    """1.0 where the highest logit is the label's, else 0.0: float64 [batch]."""
    (logits,) = outputs.values()  # [batch, 10]
    return (logits.argmax(axis=1) == labels).astype(np.float64)


def upscale(images: np.ndarray, size: int) -> np.ndarray:
    """[N, 8, 8] → float32 [N, size, size], bilinear with half-pixel centres and clamped edges."""
    centres = np.clip((np.arange(size) + 0.5) * 8 / size - 0.5, 0, 7)
    weights = np.clip(1 - np.abs(centres[:, None] - np.arange(8)), 0, 1)  # [size, 8]
    return (weights @ images @ weights.T).astype(np.float32)
