"""Element types by the names that compilers and numpy use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import ml_dtypes  # noqa: F401  from here on numpy knows bfloat16 by its name

# bits per element by the dtype names that layer lists use
DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "float8e4m3fn": 8,
        "float4e2m1": 4, "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4, "uint64": 64,
        "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4, "bool": 8,
    }
)  # fmt: skip
