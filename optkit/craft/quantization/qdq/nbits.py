"""ONNX Runtime's products with weights of few bits (com.microsoft), and how their weights are
stored.

MatMulNBits, a weight of 2, 4 or 8 bits in blocks:

    y = x @ dequantize(B)^T + bias          B [N, ceil(K / block), block · bits / 8] uint8

Codes are stored unsigned; a signed code becomes q + 2^(bits - 1), which is the default zero point
of the kernel. A byte has 8 / bits codes, the first one in its lowest bits; zero points are stored
in the same way (ONNX Runtime, ContribOperators.md). optkit writes this operator itself, because the
optimizer of ONNX Runtime creates it only from DequantizeLinear + MatMul, not for a transposed Gemm,
and always with activations rounded to 8 bits (accuracy level 4).

MatMulBnb4, a weight of 16 table entries in the layout of bitsandbytes: the rows of W^T [N, K] in
order, two codes per byte, the first in the high nibble.
"""

from __future__ import annotations

import numpy as np

from optkit.facts.errors import UsageError
from optkit.facts.precisions import NumberFormat


def pack(codes: np.ndarray, fmt: NumberFormat, block: int) -> np.ndarray:
    """Codes [N, K] of 2, 4 or 8 bits → B. The last block is padded."""
    n, k = codes.shape
    blocks = -(-k // block)
    stored = np.full((n, blocks * block), 1 << fmt.bits - 1, np.uint8)
    stored[:, :k] = codes.astype(np.int16) + _shift(fmt)
    return pack_bits(stored, fmt.bits).reshape(n, blocks, -1)


def pack_zero_points(zero_points: np.ndarray, fmt: NumberFormat) -> np.ndarray:
    """Zero points [N, blocks] of unsigned codes → uint8 [N, ceil(blocks · bits / 8)]."""
    n, blocks = zero_points.shape
    stored = np.zeros((n, blocks + -blocks % (8 // fmt.bits)), np.uint8)
    stored[:, :blocks] = zero_points.astype(np.int16)
    return pack_bits(stored, fmt.bits)


def pack_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [N, K] of 2, 4 or 8 bits each → uint8 [N, K · bits / 8]; K fills whole bytes."""
    count = 8 // bits
    shifted = [codes[:, i::count] << np.uint8(bits * i) for i in range(count)]
    packed: np.ndarray = np.bitwise_or.reduce(shifted)
    return packed


def pack_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """The same in words of 32 bits, the first code in the lowest bits: uint32 [N, ceil(K · bits /
    32)]. A last word is filled with zeros."""
    rows, columns = codes.shape
    whole = np.zeros((rows, columns + -columns % (32 // bits)), np.uint8)
    whole[:, :columns] = codes
    held = np.ascontiguousarray(pack_bits(whole, bits))
    return held.view("<u4").astype(np.uint32)


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """The codes in the rows of B, or of zero points: uint8 [N, bytes] → uint8 [N, codes]. Raises
    UsageError for another width than 2, 4 or 8 bits."""
    if bits not in (2, 4, 8):
        raise UsageError(f"its codes have {bits} bits; 2, 4 and 8 are supported")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = packed[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(len(packed), -1)


def pack_bnb4(codes: np.ndarray) -> np.ndarray:
    """Codes [N, K] below 16 → uint8 [ceil(N · K / 2)]."""
    flat = np.ascontiguousarray(codes).reshape(-1)
    packed: np.ndarray = flat[0::2] << np.uint8(4)
    packed[: flat.size // 2] |= flat[1::2]
    return packed


def unpack_bnb4(packed: np.ndarray, count: int) -> np.ndarray:
    """The first `count` codes: uint8 [bytes] → uint8 [count]."""
    return np.stack((packed >> 4, packed & 15), axis=1).reshape(-1)[:count]


def attributes(n: int, k: int, bits: int, block: int, accuracy: int) -> dict[str, int]:
    """The attributes of the node. `accuracy` 0: multiply in floats; 4: round activations to 8 bits
    by block and multiply in integers."""
    return {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": accuracy}


def _shift(fmt: NumberFormat) -> int:
    return 0 if fmt.dtype.startswith("u") else 1 << fmt.bits - 1
