"""Quantized codes with random numbers."""

from __future__ import annotations

import numpy as np

from optkit.craft.quantization.qdq.codes import Codes


def random_codes(
    seed: int, bits: int, block: int, symmetric: bool, scales: str = "float32"
) -> Codes:
    """Three rows of four blocks; the scales are numbers of FP16 in the dtype `scales`."""
    rng = np.random.default_rng(seed)
    rows, count = 3, 4
    factors = rng.uniform(0.001, 1, (rows, count)).astype(np.float16).astype(scales)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if symmetric else (0, 1 << bits)
    dtype = np.int8 if symmetric else np.uint8
    codes = rng.integers(low, high, (rows, count * block)).astype(dtype)
    zeros = np.zeros((rows, count), dtype)
    if not symmetric:
        zeros = rng.integers(0, high, (rows, count)).astype(dtype)
    return Codes(codes, factors, zeros, block, bits)
