"""The two half precisions and the range of their numbers."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import onnx_ir as ir

MARGIN = 4.0
"""Other samples may hold numbers so many times larger than the measured ones."""


class Half(NamedTuple):
    """What tells the two half precisions apart."""

    dtype: ir.DataType
    name: str
    suffix: str
    largest: float
    tiny: float  # smallest normal number
    exact: int  # whole numbers up to this are told apart
    trusted: float  # the largest measured magnitude that is left in half
    fill: float  # stands for an infinity in masks; its unit swallows scores, as FP32's lowest does
    opset: int  # the first whose convolutions and pools take it


HALVES = MappingProxyType(
    {
        "fp16": Half(ir.DataType.FLOAT16, "float16", "fp16", 65504.0, 2.0**-14, 2048,
                     65504.0 / MARGIN, 32768.0, 21),
        "bf16": Half(ir.DataType.BFLOAT16, "bfloat16", "bf16", (2 - 2.0**-7) * 2.0**127,
                     2.0**-126, 256, (2 - 2.0**-7) * 2.0**127, (2 - 2.0**-7) * 2.0**127, 22),
    }
)  # fmt: skip
