"""Precisions as data: one line per numeric scheme.

Only schemes that are built end to end stand in the table. What a *device* can do is the target's
own matrix (`Target.supports`); a precision may be supported by a device and not be built here yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from optkit.errors import UnknownName, nearest

Granularity = Literal["tensor", "channel"]


@dataclass(frozen=True)
class NumberFormat:
    """One quantized number format, e.g. signed 8-bit integers per channel, symmetric.

    `bits`: those that codes use; fewer than the dtype has where a kernel's sums would overflow.
    """

    dtype: Literal["int8", "uint8"]
    granularity: Granularity
    symmetric: bool
    bits: int = 8

    @property
    def qmin(self) -> int:
        """Smallest code. Symmetric signed codes leave the lowest unused so that negation is exact:
        -127 of 8 bits."""
        if self.dtype == "uint8":
            return 0
        return -self.qmax if self.symmetric else -self.qmax - 1

    @property
    def qmax(self) -> int:
        return (1 << self.bits) - 1 if self.dtype == "uint8" else (1 << self.bits - 1) - 1


@dataclass(frozen=True)
class Precision:
    """A named scheme. `weights`/`activations` None = not quantized, carried in `carrier`.

    `activations` here is the scheme in principle; the exact form (s8 symmetric or u8 asymmetric)
    is the backend's, see `runtime.PlacementRules`.
    """

    name: str
    carrier: Literal["fp32", "fp16"]  # dtype of everything that is not quantized, on a GPU
    quantized: bool
    weight_bits: int
    activation_bits: int
    description: str


PRECISIONS: MappingProxyType[str, Precision] = MappingProxyType(
    {
        p.name: p
        for p in (
            Precision("fp32", "fp32", False, 32, 32, "IEEE single precision, as trained"),
            Precision("fp16", "fp16", False, 16, 16, "IEEE half precision; the baseline on GPUs"),
            Precision(
                "int8", "fp16", True, 8, 8, "W8A8: weights per channel, activations per tensor"
            ),
        )
    }
)

# Names that targets list in their matrices and that optkit does not build yet.
NOT_BUILT = ("tf32", "bf16", "fp8", "int4", "fp4")


def precision(name: str) -> Precision:
    """Look a precision up. Raises UnknownName with the list of what is built."""
    found = PRECISIONS.get(name.lower())
    if found is not None:
        return found
    built = ", ".join(PRECISIONS)
    if name.lower() in NOT_BUILT:
        raise UnknownName(f"precision {name!r} is not built yet", hint=f"built: {built}")
    close = nearest(name, PRECISIONS)
    hint = f"did you mean {close[0]}? built: {built}" if close else f"built: {built}"
    raise UnknownName(f"unknown precision {name!r}", hint=hint)
