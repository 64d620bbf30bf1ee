"""Precisions as data: one line per scheme.

A `NumberFormat` defines the meaning of one code, a `Precision` the formats of weights and
activations. What a *device* supports is in the matrix of its target (`Target.supports`). The exact
form that a backend needs is in its placement rules (`placement.PlacementRules`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from optkit.facts.codec import later
from optkit.facts.dtypes import BY_SHORT, DTYPES, FLOATS
from optkit.facts.errors import UnknownName, check_single, nearest

Granularity = Literal["tensor", "channel", "block"]
Codes = Literal["int8", "uint8", "int4", "uint4", "int2", "float8e4m3fn", "float4e2m1", "nf4"]
Carrier = Literal["fp32", "fp16", "bf16"]
Processor = Literal["cpu", "gpu"]

SCALABLE = FLOATS["float16"].largest * 127
"""The largest magnitude for which the scale of 8-bit codes fits in FP16."""

BIAS_STEPS = 2.0**30
"""The most steps of an int32 bias: half of the accumulator, to which the products are added."""

_LARGEST = {name: dtype.largest for name, dtype in FLOATS.items()} | {"nf4": 1.0}
_NF4_BITS = 4  # for the one code that is no element type


@dataclass(frozen=True)
class NumberFormat:
    """One quantized number format, e.g. signed 8-bit integers per channel, symmetric.

    `limit_bits`: the bits that integer codes use, if the sums of a kernel would overflow with all
    of them. `block_size`: the numbers along the summed axis that share a scale, for granularity
    "block". `signed_scale`: for symmetric codes of 4 or 2 bits, of kernels that accept negative
    scales (as in Q4_0 of llama.cpp). The lowest code (-8, -2), which has no positive counterpart,
    then represents the number with the largest magnitude, for either sign. `dynamic`: the kernel
    computes the scales of activations at run time; else they follow from samples.
    """

    dtype: Codes
    granularity: Granularity
    symmetric: bool
    limit_bits: int | None = None
    block_size: int | None = None
    signed_scale: bool = False
    dynamic: bool = later(False)

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return self.limit_bits or (_NF4_BITS if self.is_table else DTYPES[self.dtype].bits)

    @property
    def is_table(self) -> bool:
        """Codes are indices into a table of quantiles: no element type of ONNX, and none that
        DequantizeLinear reads."""
        return self.dtype == "nf4"

    @property
    def has_two_levels(self) -> bool:
        """Whether the scales of blocks are 8-bit numbers that themselves have a scale."""
        return self.dtype == "float4e2m1" and self.granularity == "block"

    @property
    def has_free_blocks(self) -> bool:
        """Whether one may ask for another block size."""
        return self.bits <= 4 and (self.is_integer or self.is_table)

    @property
    def is_integer(self) -> bool:
        """Codes on a uniform grid; otherwise a table of floating values."""
        return self.dtype not in _LARGEST

    @property
    def qmin(self) -> int:
        """The smallest integer code. Symmetric signed 8-bit codes do not use the lowest one, so
        that negation is exact: -127. Codes of 4 and 2 bits need it: -8, -2."""
        if self.dtype.startswith("uint"):
            return 0
        return -self.qmax if self.symmetric and self.bits > 4 else -self.qmax - 1

    @property
    def qmax(self) -> int:
        """The largest integer code."""
        unsigned = self.dtype.startswith("uint")
        return (1 << self.bits) - 1 if unsigned else (1 << self.bits - 1) - 1

    @property
    def largest(self) -> float:
        """The largest value that a code with scale 1 represents. A symmetric range is divided by
        it."""
        return _LARGEST.get(self.dtype, float(-self.qmin if self.signed_scale else self.qmax))


@dataclass(frozen=True)
class Precision:
    """A named scheme. `weights`, `activations`: None if they are not quantized; they then have the
    dtype `carrier`.

    These are the formats of the scheme in principle. The backend decides the exact form (s8
    symmetric or u8 asymmetric, block sizes that divide), see `placement.PlacementRules`.

    needs         the columns of the targets' matrices (`devices/data/PRECISIONS.yaml`) that must
                  say yes
    runs_on       the processors for which some backend has kernels
    scale_dtype   of the scales of blocks; None: that of the carrier
    """

    name: str
    carrier: Carrier  # dtype of everything that is not quantized, on a GPU
    weights: NumberFormat | None
    activations: NumberFormat | None
    needs: tuple[str, ...]
    description: str
    runs_on: tuple[Processor, ...] = ("cpu", "gpu")
    scale_dtype: str | None = None

    def __str__(self) -> str:
        """The name that users write."""
        return self.name

    def to_json(self) -> str:
        return self.name

    @classmethod
    def from_json(cls, name: str) -> Precision:
        """The precision of this name. Raises UnknownName."""
        return precision(name)

    @property
    def quantized(self) -> bool:
        return self.weights is not None

    @property
    def unquantized(self) -> Precision:
        """The precision of what is not quantized."""
        return PRECISIONS[self.carrier]

    @property
    def weight_only(self) -> bool:
        """Products multiply floats by dequantized weights."""
        return self.weights is not None and self.activations is None

    @property
    def weight_codes_only(self) -> bool:
        """Whether a graph has codes of weights alone: activations are floats between kernels, and
        need no ranges from samples."""
        return self.weights is not None and (self.activations is None or self.activations.dynamic)

    @property
    def carrier_bits(self) -> int:
        """Bits of a number that is not quantized."""
        return BY_SHORT[self.carrier].bits

    @property
    def weight_bits(self) -> float:
        """Bits per weight, including scales."""
        fmt = self.weights
        if fmt is None:
            return self.carrier_bits
        if fmt.granularity != "block" or fmt.block_size is None:
            return fmt.bits
        scale_bits = DTYPES[self.scale_dtype].bits if self.scale_dtype else self.carrier_bits
        return fmt.bits + scale_bits / fmt.block_size

    @property
    def activation_bits(self) -> int:
        """Bits of an activation between kernels."""
        held = self.activations
        return self.carrier_bits if held is None or held.dynamic else held.bits


def _channels(dtype: Codes) -> NumberFormat:
    return NumberFormat(dtype, "channel", symmetric=True)


def _blocks(dtype: Codes, size: int) -> NumberFormat:
    return NumberFormat(dtype, "block", symmetric=True, block_size=size)


def run_time_blocks(size: int | None) -> NumberFormat:
    """Activations that a kernel rounds to 8 bits by blocks of this size, which is the weight's."""
    return NumberFormat("int8", "block", symmetric=True, block_size=size, dynamic=True)


def _tensor(dtype: Codes) -> NumberFormat:
    return NumberFormat(dtype, "tensor", symmetric=True)


PRECISIONS: MappingProxyType[str, Precision] = MappingProxyType(
    {
        p.name: p
        for p in (
            Precision("fp32", "fp32", None, None, ("fp32",), "IEEE single precision, as trained"),
            Precision(
                "fp16", "fp16", None, None, ("fp16",), "IEEE half precision; the baseline on GPUs"
            ),
            Precision(
                "bf16", "bf16", None, None, ("bf16",), "bfloat16: the range of fp32, 8 bits of it"
            ),
            Precision(
                "int8", "fp16", _channels("int8"), _tensor("int8"), ("int8",),
                "W8A8: weights per channel, activations per tensor",
            ),
            Precision(
                "int8-weight-only", "fp16", _channels("int8"), None, ("int4",),
                "W8A16: weights per channel, activations as they are",
            ),
            Precision(
                "fp8", "fp16", _channels("float8e4m3fn"), _tensor("float8e4m3fn"), ("fp8",),
                "W8A8 in E4M3: weights per channel, activations per tensor", ("gpu",),
            ),
            Precision(
                "int4", "fp16", _blocks("int4", 32), None, ("int4",),
                "W4A16: weights in blocks along the summed axis; on a CPU the kernel of w4a8",
            ),
            Precision(
                "w4a8", "fp16", _blocks("int4", 32), run_time_blocks(32), (),
                "W4A8: as int4, with a kernel that rounds activations to 8 bits; ONNX Runtime only",
                ("cpu",),
            ),
            Precision(
                "int2", "fp16", _blocks("int2", 64), run_time_blocks(64), (),
                "W2A8: as w4a8 with codes of 2 bits, to be trained; ONNX Runtime only", ("cpu",),
            ),
            Precision(
                "nvfp4", "fp16", _blocks("float4e2m1", 16), _blocks("float4e2m1", 16), ("fp4",),
                "W4A4 in E2M1: blocks of 16 with E4M3 scales under one scale per tensor", ("gpu",),
                "float8e4m3fn",
            ),
            Precision(
                "nf4", "fp16", _blocks("nf4", 64), None, (),
                "W4A16: the quantiles of a normal distribution, blocks of 64; ONNX Runtime only",
                ("cpu",),
            ),
        )
    }
)  # fmt: skip

_HALVES = (
    "TensorRT-RTX 1.7 dequantizes both sides and multiplies floats "
    "(docs/studies/fp4_formats.md, Microscaling formats)"
)
NOT_BUILT: MappingProxyType[str, str] = MappingProxyType(
    {
        "tf32": "it is a way to multiply fp32, which means IEEE single precision here",
        "fp8-block": "weights in fp8 have a scale for each channel here, not for blocks of 128 by "
        "128; `optkit package --dynamic` gives their inputs a scale for each token",
        "mxfp8": f"no backend multiplies it: {_HALVES}",
        "mxfp4": f"no backend multiplies it: {_HALVES}",
    }
)
"""Formats that hardware has and optkit does not build, and why."""


def precision(name: str) -> Precision:
    """The precision of this name. Raises UnknownName with the list of those that are
    implemented."""
    found = PRECISIONS.get(name.lower())
    if found is not None:
        return found
    built = ", ".join(PRECISIONS)
    if reason := NOT_BUILT.get(name.lower()):
        raise UnknownName(
            f"precision {name!r} is not built: {reason}", hint=f"choose one of: {built}"
        )
    check_single("--precision", name, PRECISIONS)
    close = nearest(name, PRECISIONS)
    hint = f"choose one of: {built}"
    hint = f"did you mean {close[0]}? {hint}" if close else hint
    raise UnknownName(f"unknown precision {name!r}", hint=hint)
