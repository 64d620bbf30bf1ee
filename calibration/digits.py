"""scikit-learn's handwritten digits as calibration samples: the training half (even indices) only.

The odd half is held out for evaluation (eval/digits_top1.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def samples(size: int = 8) -> Iterator[dict[str, np.ndarray]]:
    """Yield the 899 training digits in batches, ordered so that any first few are spread evenly.

    Each feed is {"image": float32 [batch, 1, size, size]} in [0, 1], bilinearly upscaled from 8×8.
    """
    from sklearn.datasets import load_digits

    train = load_digits().images[0::2]  # [899, 8, 8], values 0..16
    order = np.arange(len(train)) * 556 % len(train)  # steps of the golden ratio; 556 is coprime
    for start in range(0, len(train), 32):
        yield {"image": upscale(train[order[start : start + 32]] / 16, size)[:, None]}


def upscale(images: np.ndarray, size: int) -> np.ndarray:
    """[N, 8, 8] → float32 [N, size, size], bilinear with half-pixel centres and clamped edges."""
    centres = np.clip((np.arange(size) + 0.5) * 8 / size - 0.5, 0, 7)
    weights = np.clip(1 - np.abs(centres[:, None] - np.arange(8)), 0, 1)  # [size, 8]
    return (weights @ images @ weights.T).astype(np.float32)
