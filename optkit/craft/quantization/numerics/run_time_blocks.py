"""Activations that a kernel rounds to 8 bits in blocks, with scales that it computes at run time.

    s_b = max|x_b| / 127        x' = round(x / s_b) s_b        blocks along the last axis

(ONNX Runtime, MatMulNBits with accuracy level 4; its blocks are those of the weight.) Nothing is
clipped. A large number costs the precision of the others in its block and row only.
"""

from __future__ import annotations

import numpy as np

from optkit.facts.precisions import NumberFormat


def is_rounded(fmt: NumberFormat | None) -> bool:
    """Whether a kernel rounds activations of this format in this way."""
    return fmt is not None and fmt.dynamic


def rounded(x: np.ndarray, fmt: NumberFormat) -> np.ndarray:
    """The numbers that the kernel multiplies for x [n, K], float32. The last block may be
    shorter."""
    assert fmt.block_size is not None
    n, k = x.shape
    blocks = np.zeros((n, -(-k // fmt.block_size), fmt.block_size), np.float32)
    blocks.reshape(n, -1)[:, :k] = x
    scale = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(fmt.qmax)
    scale[scale == 0] = 1
    held: np.ndarray = np.rint(blocks / scale) * scale
    return held.reshape(n, -1)[:, :k]
