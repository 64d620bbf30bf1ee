"""MLX's affine form of quantized weights, and its bytes.

    W[n, k] = q[n, k] * scales[n, k // size] + biases[n, k // size]

q are codes of 2, 4 or 8 bits without a sign. A word of 32 bits holds consecutive codes of a row,
the first one in its lowest bits. A group has 32, 64 or 128 codes (mlx, `mx.quantize`). A code with
a zero point keeps its bits: the bias is -zero point * scale, and what turns a code with a sign into
one without is part of the zero point. Longer blocks get their scale repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optkit.craft.quantization.qdq import nbits
from optkit.craft.quantization.qdq.codes import Codes

_SIZES = (128, 64, 32)  # the longest that fits: fewer scales


@dataclass(frozen=True, order=True)
class CodeForm:
    """Codes of a group, and bits of a code."""

    size: int
    bits: int


@dataclass(frozen=True)
class MlxStorage:
    """How a tensor is stored.

    numbers   how many
    form      of codes; None: floats
    loosened  whether the artifact has codes that no form holds, so that floats are stored
    rounded   whether floats were rounded to the dtype of the model
    rounding  largest change of a weight by the rounding of a bias, in units of its scale
    """

    numbers: int
    form: CodeForm | None = None
    loosened: bool = False
    rounded: bool = False
    rounding: float = 0.0


def store(
    name: str, weight: Codes | np.ndarray, dtype: np.dtype[np.generic]
) -> tuple[Mapping[str, np.ndarray], MlxStorage]:
    """The tensors of a parameter, and how it is stored. Floats get `dtype`, that of the model's
    activations in MLX; if it cannot hold them, they stay."""
    packed = _packed(weight) if isinstance(weight, Codes) else None
    if packed is not None:
        tensors, stored = packed
        module = name.rpartition(".")[0]
        return {f"{module}.{part}": tensor for part, tensor in tensors.items()}, stored
    numbers = weight.numbers() if isinstance(weight, Codes) else weight
    held = _cast(numbers, dtype)
    if not np.isfinite(held.astype(np.float32)).all():
        held = numbers
    rounded = not np.array_equal(held.astype(np.float32), numbers.astype(np.float32))
    return {name: np.ascontiguousarray(held)}, MlxStorage(
        numbers.size, loosened=isinstance(weight, Codes), rounded=rounded
    )


def _packed(weight: Codes) -> tuple[Mapping[str, np.ndarray], MlxStorage] | None:
    """None: no form has these codes, blocks or scales."""
    blocked = next(filter(None, map(weight.in_blocks_of, _SIZES)), None)
    if blocked is None or weight.bits not in (2, 4, 8):
        return None
    shift = 0 if blocked.codes.dtype == np.uint8 else 1 << weight.bits - 1
    codes = (blocked.codes.astype(np.int16) + shift).astype(np.uint8)
    scales = blocked.scales.astype(np.float32)
    biases = -(blocked.zero_points.astype(np.float32) + shift) * scales
    held = _cast(biases, blocked.scales.dtype)
    change = np.abs(held.astype(np.float32) - biases)
    if not np.isfinite(change).all():
        return None
    steps = np.abs(np.where(scales == 0, 1, scales))
    tensors = {
        "weight": nbits.pack_words(codes, weight.bits),
        "scales": np.ascontiguousarray(blocked.scales),
        "biases": held,
    }
    form = CodeForm(blocked.block, weight.bits)
    rounding = float((change / steps).max(initial=0.0))
    return tensors, MlxStorage(codes.size, form, rounding=rounding)


def _cast(numbers: np.ndarray, dtype: np.dtype[np.generic]) -> np.ndarray:
    """Numbers that the dtype does not hold become infinite."""
    with np.errstate(over="ignore"):
        held: np.ndarray = numbers.astype(dtype)
    return held
