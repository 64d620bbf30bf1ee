"""The types of GGML that hold an artifact's weights, and their bytes.

Q4_0  32 codes of 4 bits q, a scale d:             W = (q - 8) d    also codes of 2 bits
Q4_1  32 codes of 4 bits q, a scale d, a minimum m: W = q d + m
Q8_0  32 codes of 8 bits q, a scale d:             W = q d
F16, BF16, F32

d and m are FP16. In a block of 4-bit codes, byte j holds code j in its low half and code j + 16 in
its high half (ggml/src/ggml-common.h). A row of longer blocks gets its scale repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType

from optkit.craft.quantization.qdq.codes import Codes
from optkit.facts.dtypes import FLOATS

_BLOCK = 32
_LARGEST = FLOATS["float16"].largest
_SMALLEST_NORMAL = 2.0**-14  # of FP16; below it, FP16 has fewer bits

_KINDS = {
    "float16": GGMLQuantizationType.F16,
    "bfloat16": GGMLQuantizationType.BF16,
    "float32": GGMLQuantizationType.F32,
}


@dataclass(frozen=True)
class GgmlStorage:
    """How a tensor is stored.

    numbers   how many
    codes     whether the artifact's codes are carried over
    loosened  whether the artifact has codes that no type holds, so that floats are stored
    rounding  largest change of a scale or minimum by its rounding to FP16, of the tensor's largest
              scale
    """

    kind: GGMLQuantizationType
    numbers: int
    codes: bool = False
    loosened: bool = False
    rounding: float = 0.0


def store(weight: Codes | np.ndarray) -> tuple[np.ndarray, GgmlStorage]:
    """The bytes of a weight, and its type. Vectors are F32: llama.cpp has no other for them."""
    if isinstance(weight, Codes):
        size = weight.codes.size
        packed = _packed(weight)
        if packed is not None:
            data, kind, rounding = packed
            return data, GgmlStorage(kind, size, codes=True, rounding=rounding)
        numbers = weight.numbers()
        held = numbers.astype(np.float16) if _fits(numbers) else numbers
        return held, GgmlStorage(_KINDS[str(held.dtype)], size, loosened=True)
    if weight.ndim < 2:
        return weight.astype(np.float32), GgmlStorage(GGMLQuantizationType.F32, weight.size)
    kind = _KINDS[str(weight.dtype)]
    contiguous = np.ascontiguousarray(weight)
    if kind is GGMLQuantizationType.BF16:  # for numpy it is no number; the writer takes bytes
        contiguous = contiguous.view(np.uint8)
    return contiguous, GgmlStorage(kind, weight.size)


def _packed(weight: Codes) -> tuple[np.ndarray, GGMLQuantizationType, float] | None:
    """Bytes [N, bytes of a row], type, and the rounding of scales; None: no type has these codes,
    blocks or scales."""
    blocked = weight.in_blocks_of(_BLOCK)
    if blocked is None or not _fits(blocked.scales):
        return None
    scales = blocked.scales.astype(np.float32)
    half = scales.astype(np.float16)
    rounding = _change(half, scales, scales)
    centred = blocked.centred()
    low, high = int(centred.min(initial=0)), int(centred.max(initial=0))
    if weight.bits <= 4 and low >= -8 and high <= 7:
        return _rows(half, _halves(centred + 8)), GGMLQuantizationType.Q4_0, rounding
    if weight.bits == 4:
        shift = 0 if blocked.codes.dtype == np.uint8 else 8
        exact = -(blocked.zero_points.astype(np.float32) + shift) * scales
        minima = exact.astype(np.float16)
        rounding = max(rounding, _change(minima, exact, scales))
        codes = _halves(blocked.codes.astype(np.int16) + shift)
        return _rows(half, minima, codes), GGMLQuantizationType.Q4_1, rounding
    if low >= -128 and high <= 127:
        codes = centred.astype(np.int8).reshape(*half.shape, _BLOCK)
        return _rows(half, codes), GGMLQuantizationType.Q8_0, rounding
    return None


def _change(rounded: np.ndarray, exact: np.ndarray, scales: np.ndarray) -> float:
    """The largest difference, of the largest scale."""
    largest = float(np.abs(scales).max(initial=0.0))
    return float(np.abs(rounded - exact).max(initial=0.0)) / (largest or 1.0)


def _fits(numbers: np.ndarray) -> bool:
    """Whether FP16 holds these numbers with all its bits, relative to the largest one."""
    largest = float(np.abs(numbers.astype(np.float32)).max(initial=0.0))
    return largest == 0 or _SMALLEST_NORMAL <= largest <= _LARGEST


def _halves(codes: np.ndarray) -> np.ndarray:
    """Codes below 16 [N, K] → uint8 [N, blocks, 16]."""
    blocks = codes.astype(np.uint8).reshape(len(codes), -1, _BLOCK)
    packed: np.ndarray = blocks[..., : _BLOCK // 2] | blocks[..., _BLOCK // 2 :] << np.uint8(4)
    return packed


def _rows(*parts: np.ndarray) -> np.ndarray:
    """The parts of each block [N, blocks] or [N, blocks, n], one after another: bytes by row."""
    rows, count = parts[0].shape
    data = [np.ascontiguousarray(part).view(np.uint8).reshape(rows, count, -1) for part in parts]
    return np.concatenate(data, axis=-1).reshape(rows, -1)
