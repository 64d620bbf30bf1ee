"""ONNX Runtime's products with a weight in few bits (com.microsoft): how their weights are stored.

MatMulNBits, a weight of 4 or 8 bits in blocks:

    y = x @ dequantize(B)^T + bias          B [N, ceil(K / block), block · bits / 8] uint8

Codes are stored unsigned, q + 2^(bits - 1), which is the zero point the kernel takes where none is
given; in 4 bits two to a byte, the first in the low nibble (ONNX Runtime, ContribOperators.md).
Written out rather than left to the optimizer: that makes it from DequantizeLinear + MatMul only,
not behind a transposed Gemm, and always with activations rounded to 8 bits (accuracy level 4).

MatMulBnb4, a weight of 16 table entries as bitsandbytes stores it: the rows of W^T [N, K] one after
the other, two codes to a byte, the first in the high nibble.
"""

from __future__ import annotations

import numpy as np


def pack(codes: np.ndarray, bits: int, block: int) -> np.ndarray:
    """Signed codes [N, K] of 4 or 8 bits → B, the last block filled up with zeros."""
    n, k = codes.shape
    blocks = -(-k // block)
    stored = np.full((n, blocks * block), 1 << bits - 1, np.uint8)
    stored[:, :k] = codes.astype(np.int16) + (1 << bits - 1)
    if bits == 4:
        stored = stored[:, 0::2] | stored[:, 1::2] << np.uint8(4)
    return stored.reshape(n, blocks, block * bits // 8)


def pack_bnb4(codes: np.ndarray) -> np.ndarray:
    """Codes [N, K] below 16 → uint8 [ceil(N · K / 2)]."""
    flat = np.ascontiguousarray(codes).reshape(-1)
    packed: np.ndarray = flat[0::2] << np.uint8(4)
    packed[: flat.size // 2] |= flat[1::2]
    return packed


def unpack(packed: np.ndarray, bits: int, k: int) -> np.ndarray:
    """The codes [N, K], int8, of B."""
    flat = packed.reshape(len(packed), -1)
    if bits == 4:
        flat = np.stack([flat & np.uint8(15), flat >> np.uint8(4)], axis=-1).reshape(len(flat), -1)
    codes: np.ndarray = (flat[:, :k].astype(np.int16) - (1 << bits - 1)).astype(np.int8)
    return codes


def attributes(n: int, k: int, bits: int, block: int, accuracy: int) -> dict[str, int]:
    """Of the node. `accuracy` 0: multiply in floats; 4: round activations to 8 bits by block and
    multiply in integers."""
    return {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": accuracy}
