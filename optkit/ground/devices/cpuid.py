"""The features of the processor from its CPUID instruction, read through the C library.

/proc/cpuinfo names the features of the host even if another processor is emulated (an x86 container
on an Arm host, `qemu-x86_64 -cpu Haswell`), while native libraries choose their kernels by CPUID.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable

# glibc's index of a CPUID leaf (bits/platform/x86.h, glibc 2.33 and newer), register, bit
_EBX, _ECX, _EDX, _EAX = 1, 2, 3, 0
_LEAF_1, _LEAF_7, _LEAF_7_1 = 0, 1, 6
_BITS = {
    "fma": (_LEAF_1, _ECX, 12),
    "f16c": (_LEAF_1, _ECX, 29),
    "avx2": (_LEAF_7, _EBX, 5),
    "avx512f": (_LEAF_7, _EBX, 16),
    "avx512_vnni": (_LEAF_7, _ECX, 11),
    "amx_bf16": (_LEAF_7, _EDX, 22),
    "avx512_fp16": (_LEAF_7, _EDX, 23),
    "amx_tile": (_LEAF_7, _EDX, 24),
    "amx_int8": (_LEAF_7, _EDX, 25),
    "avx_vnni": (_LEAF_7_1, _EAX, 4),
    "avx512_bf16": (_LEAF_7_1, _EAX, 5),
}


class _Leaf(ctypes.Structure):
    """Registers EAX to EDX: those of the processor, and those that the system enables."""

    _fields_ = (("raw", ctypes.c_uint32 * 4), ("active", ctypes.c_uint32 * 4))


def features() -> frozenset[str] | None:
    """The features in use, by the names of /proc/cpuinfo; None if the C library cannot report them
    (it is not glibc 2.33 or newer, or the processor is not x86)."""
    leaf = _reader()
    if leaf is None:
        return None
    registers = {index: leaf(index).contents.active for index in (_LEAF_1, _LEAF_7, _LEAF_7_1)}
    return frozenset(
        name for name, (index, at, bit) in _BITS.items() if registers[index][at] >> bit & 1
    )


def _reader() -> Callable[[int], ctypes._Pointer[_Leaf]] | None:
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    try:
        found = ctypes.CDLL(None).__x86_get_cpuid_feature_leaf
    except (AttributeError, TypeError):  # no such function; Windows has no library None
        return None
    found.restype, found.argtypes = ctypes.POINTER(_Leaf), (ctypes.c_uint,)
    return found
