"""Element types: their sizes, and what each library calls them. One table for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Dtype:
    """One element type.

    name       numpy's and ml_dtypes' name, or that of layer lists where these have none
    bits       of one element
    short      the name of the number format in precisions and in the peaks of devices
    tensorrt   the name in TensorRT's enumeration DataType; None: it has no such type
    ort        ONNX Runtime's name, in signatures and profiles; None: as `name`
    stored     the name in safetensors files; None: they have no such type
    """

    name: str
    bits: int
    short: str
    tensorrt: str | None = None
    ort: str | None = None
    stored: str | None = None


@dataclass(frozen=True, kw_only=True)
class Float(Dtype):
    """A floating-point type, with its range.

    mantissa   bits that are stored of it
    smallest   normal number
    largest    finite number
    """

    mantissa: int
    smallest: float
    largest: float

    @property
    def exact(self) -> int:
        """All whole numbers up to this one are represented exactly."""
        return 2 << self.mantissa


FLOATS: Mapping[str, Float] = MappingProxyType(
    {
        dtype.name: dtype
        for dtype in (
            Float("float64", 64, "fp64", ort="double", stored="F64",
                  mantissa=52, smallest=2.0**-1022, largest=(2 - 2.0**-52) * 2.0**1023),
            Float("float32", 32, "fp32", "FLOAT", ort="float", stored="F32",
                  mantissa=23, smallest=2.0**-126, largest=(2 - 2.0**-23) * 2.0**127),
            Float("float16", 16, "fp16", "HALF", stored="F16",
                  mantissa=10, smallest=2.0**-14, largest=65504.0),
            Float("bfloat16", 16, "bf16", "BF16", stored="BF16",
                  mantissa=7, smallest=2.0**-126, largest=(2 - 2.0**-7) * 2.0**127),
            Float("float8e4m3fn", 8, "fp8", "FP8", stored="F8_E4M3",
                  mantissa=3, smallest=2.0**-6, largest=448.0),
            Float("float4e2m1", 4, "fp4", "FP4", stored="F4",
                  mantissa=1, smallest=1.0, largest=6.0),
        )
    }
)  # fmt: skip
"""By name."""

DTYPES: Mapping[str, Dtype] = MappingProxyType(
    {
        dtype.name: dtype
        for dtype in (
            *FLOATS.values(),
            Dtype("int64", 64, "int64", "INT64", stored="I64"),
            Dtype("int32", 32, "int32", "INT32", stored="I32"),
            Dtype("int16", 16, "int16", stored="I16"),
            Dtype("int8", 8, "int8", "INT8", stored="I8"),
            Dtype("int4", 4, "int4", "INT4"),
            Dtype("int2", 2, "int2"),
            Dtype("uint64", 64, "uint64", stored="U64"),
            Dtype("uint32", 32, "uint32", stored="U32"),
            Dtype("uint16", 16, "uint16", stored="U16"),
            Dtype("uint8", 8, "uint8", "UINT8", stored="U8"),
            Dtype("uint4", 4, "uint4"),
            Dtype("bool", 8, "bool", "BOOL", stored="BOOL"),
        )
    }
)
"""By name."""

BY_SHORT: Mapping[str, Dtype] = MappingProxyType({d.short: d for d in DTYPES.values()})
"""By the short name: "fp16"."""
