"""The qparams: the numbers of every quantized value and weight, computed once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics import scales
from optkit.craft.quantization.numerics.scales import Scale
from optkit.facts.precisions import NumberFormat


@dataclass(frozen=True)
class ActivationQParams:
    """The qparams of one Q/DQ pair: the requested range, and its scale and zero point.

    `rest`: the scale of the remainder x - dq(q(x)), if a second pair quantizes it.
    """

    source: str  # the name under which it was calibrated
    low: float
    high: float
    method: str
    scale: Scale
    format: NumberFormat
    clipped: float  # share of the calibration elements outside the representable range
    rest: Scale | None = None


@dataclass(frozen=True)
class WeightQParams:
    """The codes of one node's weight, in the layout that the node reads, and its bias.

    stored_codes   the codes, in memory or in a file; `codes` reads them
    scale   the scale of the codes: rank 0, [channels], or blocks along `axis`
    stored  the scale in the DequantizeLinear; a Mul after the node applies `ratio` [channels]
    bias    [channels], float; None: the bias of the node does not change
    """

    name: str
    stored_codes: ir.TensorProtocol
    format: NumberFormat
    axis: int | None
    block_size: int | None
    scale: Scale
    stored: Scale
    ratio: np.ndarray | None
    bias: np.ndarray | None
    activation: Scale | None

    @property
    def codes(self) -> np.ndarray:
        """The codes. They leave memory with the array if they are in a file."""
        return self.stored_codes.numpy()

    def floats(self) -> np.ndarray:
        """float32 values of the codes, in the same layout."""
        codes, scale = self.codes, self.scale
        turned = self.block_size is not None and self.axis == 1
        if turned:  # blocks are along the first axis of the matrix for `scales`
            codes = codes.T
            scale = scale._replace(scale=scale.scale.T, zero_point=scale.zero_point.T)
        values = scales.dequantize(codes, scale, self.axis, fmt=self.format)
        return values.T if turned else values

    def by_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes [N, K], block scales and zero points [N, blocks]: one row per output channel."""
        parts = self.codes, self.scale.scale, self.scale.zero_point
        return parts if self.axis == 1 else (parts[0].T, parts[1].T, parts[2].T)

    @property
    def span(self) -> tuple[float, float]:
        """Smallest and largest scale."""
        return float(self.scale.scale.min()), float(self.scale.scale.max())


@dataclass(frozen=True)
class QParams:
    """All qparams: those of values by (calibrated name, format), those of weights by node name.
    `clamped`: number of scales that were changed to a normal number of their dtype."""

    activations: dict[tuple[str, NumberFormat], ActivationQParams] = field(default_factory=dict)
    weights: dict[str, WeightQParams] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def clamped(self) -> int:
        pairs = sum(a.scale.clamped for a in self.activations.values())
        return pairs + sum(w.scale.clamped for w in self.weights.values())
