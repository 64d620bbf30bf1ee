"""The two half precisions, and what the cast does at the ends of their range."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from optkit.dtypes import FLOATS, Float

MARGIN = 4.0
"""Other samples may hold numbers so many times larger than the measured ones."""


@dataclass(frozen=True)
class Half:
    """A half precision as the cast uses it."""

    kind: Float
    trusted: float  # the largest measured magnitude that is left in half
    fill: float  # stands for an infinity in masks; its unit swallows scores, as FP32's lowest does
    opset: int  # the first whose convolutions and pools take it

    @property
    def dtype(self) -> ir.DataType:
        return ir.DataType[self.kind.name.upper()]


_FP16, _BF16 = FLOATS["float16"], FLOATS["bfloat16"]
HALVES = MappingProxyType(
    {
        "fp16": Half(_FP16, _FP16.largest / MARGIN, 32768.0, 21),
        "bf16": Half(_BF16, _BF16.largest, _BF16.largest, 22),
    }
)
