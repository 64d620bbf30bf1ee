"""Assignment: which node gets which precision, and why. The decision, apart from applying it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from optkit.dtypes import BY_SHORT
from optkit.placement import PlacementRules
from optkit.precisions import PRECISIONS


@dataclass(frozen=True)
class Scheme:
    """Into which precision a graph is quantized, on which carrier ("fp16", "bf16", "fp32"), and the
    placement rules of that precision and of those that single nodes get."""

    precision: str
    carrier: str
    rules: Mapping[str, PlacementRules]

    @property
    def dtype(self) -> np.dtype:
        """Of the carrier."""
        return np.dtype(BY_SHORT[self.carrier].name)


@dataclass(frozen=True)
class Assignment:
    """Node name → precision name, for every node that was *considered* (Conv, MatMul, Gemm with a
    constant weight). A node left in float maps to the carrier ("fp16", ...) and has a reason.
    """

    nodes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def quantized(self) -> dict[str, str]:
        """The nodes assigned a quantized precision: what landing is counted against."""
        return {node: name for node, name in self.nodes.items() if PRECISIONS[name].quantized}

    def to_json(self) -> dict[str, object]:
        return asdict(self)
