"""Calibration samples for the decoder of decoder.py: seeded random tokens.

A few tokens come often and most of them rarely, as words do (Zipf's law).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def samples(
    count: int = 32, length: int = 256, vocabulary: int = 32000, seed: int = 0
) -> Iterator[dict[str, np.ndarray]]:
    """One sample per batch: {"tokens": int64 [1, length]}."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        yield {"tokens": generator.zipf(1.2, (1, length)) % vocabulary}
