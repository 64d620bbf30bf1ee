"""Assignment: the precision of each node, and the reasons. Another module applies it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from optkit.facts.codec import later
from optkit.facts.dtypes import BY_SHORT
from optkit.facts.placement import PlacementRules
from optkit.facts.plain_record import AtLeastOne, Count, PlainRecord
from optkit.facts.precisions import PRECISIONS, Precision


@dataclass(frozen=True)
class Scheme:
    """The precision into which a graph is quantized, the carrier ("fp16", "bf16", "fp32"), and the
    placement rules of this precision and of those that single nodes get."""

    precision: Precision
    carrier: str
    rules: Mapping[Precision, PlacementRules]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the carrier."""
        return np.dtype(BY_SHORT[self.carrier].name)

    @property
    def unquantized(self) -> Precision:
        """The precision of nodes that stay in floats."""
        return PRECISIONS[self.carrier]


@dataclass(frozen=True)
class FloatProducts(PlainRecord):
    """Products that stay in floats for the same reason."""

    reason: str
    products: AtLeastOne
    node: str
    """The first of them."""


@dataclass(frozen=True)
class QuantizedProducts(PlainRecord):
    """How much of the graph is quantized. A product is a Conv, ConvTranspose, MatMul or Gemm with a
    constant weight."""

    products: Count
    quantized: Count
    by_precision: Mapping[str, Count]
    """All products, by their precision."""
    in_float: tuple[FloatProducts, ...]
    """The most frequent reason first."""


@dataclass(frozen=True)
class Assignment:
    """Node name → precision, for every node that was *considered* (Conv, ConvTranspose, MatMul
    and Gemm with a constant weight; LSTM where the backend has integers for it). A node that stays
    in float has the carrier as its precision ("fp16", ...) and a reason; others may have one. In a
    reason, the particulars of a node are after the first ": ". `experts`: the nodes that multiply a
    matrix of a stack, which a lookup finds for each token (`graph.Stack`); `recurrences`: recurrent
    cells."""

    nodes: dict[str, Precision] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    experts: frozenset[str] = later(frozenset())
    recurrences: frozenset[str] = later(frozenset())

    def quantized(self) -> dict[str, Precision]:
        """The nodes with a quantized precision whose activations calibration observes. Kernels of
        experts and of recurrent cells round activations themselves."""
        apart = self.experts | self.recurrences
        return {node: each for node, each in self.planned().items() if node not in apart}

    def planned(self) -> dict[str, Precision]:
        """All nodes with a quantized precision. Landing is counted relative to these."""
        return {node: chosen for node, chosen in self.nodes.items() if chosen.quantized}

    def coverage(self) -> QuantizedProducts:
        quantized = self.planned()
        alike: dict[str, list[tuple[str, str]]] = {}
        for node in self.nodes.keys() - quantized.keys():
            why = self.reasons.get(node, "")
            alike.setdefault(why.partition(": ")[0], []).append((node, why))
        order = {node: place for place, node in enumerate(self.nodes)}
        rows = []
        for kind, members in alike.items():
            first = min((node for node, _ in members), key=lambda node: order[node])
            texts = {why for _, why in members}
            rows.append(
                FloatProducts(texts.pop() if len(texts) == 1 else kind, len(members), first)
            )
        return QuantizedProducts(
            len(self.nodes),
            len(quantized),
            dict(sorted(Counter(map(str, self.nodes.values())).items())),
            tuple(sorted(rows, key=lambda row: (-row.products, order[row.node]))),
        )

    def told(self, reasons: Mapping[str, str]) -> Assignment:
        """The same, with these reasons."""
        return replace(self, reasons=self.reasons | dict(reasons))
