"""Handwritten digits as calibration samples: the training half (even indices) only.

The odd half is held out for evaluation (eval/digits_top1.py). `digits.npz` beside this file holds
the 1,797 pictures of scikit-learn's `load_digits`, in the same order: images, uint8 [1797, 8, 8]
from 0 to 16, and labels, uint8 [1797]. They are the test set of E. Alpaydin and C. Kaynak, "Optical
Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998 (CC BY 4.0, see NOTICE).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np


def samples(size: int = 8) -> Iterator[dict[str, np.ndarray]]:
    """Yield the 899 training digits in batches, ordered so that any first few are spread evenly.

    Each feed is {"image": float32 [batch, 1, size, size]} in [0, 1], bilinearly upscaled from 8×8.
    """
    with np.load(Path(__file__).with_name("digits.npz")) as digits:
        train = digits["images"][0::2]  # [899, 8, 8], values 0..16
    order = np.arange(len(train)) * 556 % len(train)  # steps of the golden ratio; 556 is coprime
    for start in range(0, len(train), 32):
        yield {"image": upscale(train[order[start : start + 32]] / 16, size)[:, None]}


def upscale(images: np.ndarray, size: int) -> np.ndarray:
    """[N, 8, 8] → float32 [N, size, size], bilinear with half-pixel centres and clamped edges."""
    centres = np.clip((np.arange(size) + 0.5) * 8 / size - 0.5, 0, 7)
    weights = np.clip(1 - np.abs(centres[:, None] - np.arange(8)), 0, 1)  # [size, 8]
    return (weights @ images @ weights.T).astype(np.float32)
