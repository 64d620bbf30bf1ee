"""Assignment: which node gets which precision, and why. The decision, apart from applying it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from optkit.precisions import PRECISIONS


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
