"""Assignment: the precision of each node, and the reasons. Another module applies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from optkit.dtypes import BY_SHORT
from optkit.placement import PlacementRules
from optkit.precisions import PRECISIONS


@dataclass(frozen=True)
class Scheme:
    """The precision into which a graph is quantized, the carrier ("fp16", "bf16", "fp32"), and the
    placement rules of this precision and of those that single nodes get."""

    precision: str
    carrier: str
    rules: Mapping[str, PlacementRules]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the carrier."""
        return np.dtype(BY_SHORT[self.carrier].name)


@dataclass(frozen=True)
class Assignment:
    """Node name → precision name, for every node that was *considered* (Conv, MatMul and Gemm with
    a constant weight). A node that stays in float has the carrier as its precision ("fp16", ...)
    and a reason; others may have one."""

    nodes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def quantized(self) -> dict[str, str]:
        """The nodes with a quantized precision. Landing is counted relative to these."""
        return {node: name for node, name in self.nodes.items() if PRECISIONS[name].quantized}

    def told(self, reasons: Mapping[str, str]) -> Assignment:
        """The same, with these reasons."""
        return replace(self, reasons=self.reasons | dict(reasons))

    def to_json(self) -> dict[str, object]:
        return asdict(self)
