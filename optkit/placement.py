"""What a backend wants of one precision in a graph: where Q/DQ pairs go, in which formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from optkit.precisions import NumberFormat


@dataclass(frozen=True)
class PlacementRules:
    """What a backend wants of one precision in a graph, on one target: pure data, no native code
    behind it. `activation` None: only weights are quantized.

    The quantizer obeys them; the landing report checks them against the compiled engine.
    """

    activation: NumberFormat | None
    weight: NumberFormat
    ops: frozenset[str]  # op types with a constant weight that may be quantized
    residual_adds: bool  # quantize the other input of an Add that follows a quantized Conv (never
    # of one that follows a MatMul: that would put a transformer's residual stream into 8 bits)
    quantize_outputs: frozenset[str]  # op types that only compute in integers when their output
    # (behind a Relu or Add that follows) is quantized too
    float_output: bool  # leave the graph's last layer with a float output
    excluded: Mapping[str, str] = field(default_factory=dict)  # op type -> why never on this target
    min_conv_channels: int = 1  # a Conv with fewer input channels (all groups) stays in float
    thin_conv: str = "float is faster"  # why
    grouped_conv: bool = True  # a Conv in groups may be quantized
    max_kernel: int | None = None  # a Conv whose kernel has more elements stays in float
    blocks: Literal["any", "halving", "powers"] = "any"  # block sizes: any, those that divide the
    # summed axis into two or more, or those that divide it and are powers of two
    free_bias: bool = False  # a product takes a bias at no cost, so one may be added
    embeddings: bool = False  # a table of embeddings may be stored in 8 bits per row
    integer_bias: frozenset[str] = frozenset()  # op types whose bias must be int32 behind a
    # DequantizeLinear of scale activation × weight, or they stay float
    split_scale: frozenset[str] = frozenset()  # op types whose per-channel weight scale is split:
    # a scalar in the weight's DequantizeLinear, the rest a Mul (and the bias an Add) behind it
    tensor_ops: frozenset[str] = frozenset()  # op types whose weights get one scale per tensor
    gemm_for_matrices: bool = False  # write a MatMul of two matrices (rank 2) as Gemm
    nbits_accuracy: int | None = None  # write a product whose weight alone is quantized as
    # MatMulNBits (com.microsoft) of this accuracy level: 0 multiplies in floats, 4 in 8 bits
    last: str | None = None  # the precision of the graph's last layers, where it is another one

    @property
    def weights_in_blocks(self) -> bool:
        """Whether weights alone are quantized, in blocks whose scales have one level: then the
        numbers of a block follow from that block, and a weight can be quantized piece by piece.
        (Those of E2M1 stand under a scale for the whole weight.)"""
        in_blocks = self.weight.granularity == "block" and self.weight.dtype != "float4e2m1"
        return self.activation is None and in_blocks

    def weight_of(self, op: str) -> NumberFormat:
        """The weight format of an op type."""
        one = op in self.tensor_ops and self.weight.granularity == "channel"
        return replace(self.weight, granularity="tensor") if one else self.weight

    def to_json(self) -> dict[str, object]:
        sets = {key: sorted(getattr(self, key)) for key in _RULE_SETS}
        return {**asdict(self), **sets, "excluded": dict(self.excluded)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        formats = {key: data[key] and NumberFormat(**data[key]) for key in ("activation", "weight")}
        sets = {key: frozenset(data[key]) for key in _RULE_SETS}
        return cls(**{**data, **formats, **sets})


_RULE_SETS = ("ops", "quantize_outputs", "integer_bias", "split_scale", "tensor_ops")
