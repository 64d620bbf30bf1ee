"""The two half precisions, and what the cast does at the ends of their range."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from optkit.facts.dtypes import FLOATS, Float

MARGIN = 4.0
"""Other samples may contain numbers this many times larger than the measured ones."""


@dataclass(frozen=True)
class Half:
    """The properties of a half precision for the cast."""

    kind: Float
    trusted: float  # the largest measured magnitude that stays in half precision
    # an infinity in masks: at this magnitude rounding removes a score, as with the lowest of FP32
    fill: float
    opset: int  # the first opset whose convolutions and pools support it

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
