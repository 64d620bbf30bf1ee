"""Products of 8-bit codes as CPUs sum them, and weights that this machine multiplies exactly."""

from __future__ import annotations

import numpy as np

from optkit.ground.devices import cpu
from optkit.ground.devices.machine import sums_in_16_bits

SATURATES = sums_in_16_bits(cpu().machine, cpu().features)
LARGEST = 63 if SATURATES else 127  # weight: what quantization keeps to on this machine


def weights(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Random int8 weights of this machine's range."""
    return random.integers(-LARGEST, LARGEST + 1, shape).astype(np.int8)


def exact(codes: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[M, K] u8 × [K, N] s8 → [M, N], summed in 32 bits (VPDPBUSD, Arm)."""
    return codes.astype(np.int32) @ weight.astype(np.int32)


def saturating(codes: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[M, K] u8 × [K, N] s8 → [M, N] as AVX2 and AVX-512 without VNNI: VPMADDUBSW adds the products
    of neighbours along K in 16 bits, which saturate; VPMADDWD and VPADDD add those in 32 bits
    (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, PMADDUBSW)."""
    odd = codes.shape[1] % 2
    a = np.pad(codes, ((0, 0), (0, odd))).astype(np.int32)
    b = np.pad(weight, ((0, odd), (0, 0))).astype(np.int32)
    pairs = a[:, 0::2, None] * b[None, 0::2] + a[:, 1::2, None] * b[None, 1::2]  # [M, K / 2, N]
    return np.clip(pairs, -(1 << 15), (1 << 15) - 1).sum(1, dtype=np.int32)
