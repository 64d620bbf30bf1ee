"""Weight-only quantization of a model larger than memory: codes are computed while the graph is
saved.

    w (data file) ── rows ──► scale, codes = round_to_nearest(block of rows) ──► data file

This is for methods without data, in which the numbers of a weight depend on that weight alone. The
codes and scales are those of `choose_qparams` and `qdq.apply`, but they are not kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics.scales import Search
from optkit.craft.quantization.out_of_core.coded_graph import CodedNode, Codings, Place, unsimulated
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.expert_formats import expert_formats
from optkit.craft.quantization.placement.qdq_placement import Rules
from optkit.craft.quantization.placement.weighted_nodes import constant
from optkit.craft.quantization.qdq.coded_experts import quantize_experts
from optkit.craft.quantization.qdq.coding import Coding
from optkit.craft.quantization.qdq.insertion import QuantLog
from optkit.craft.quantization.rounding.expert_rounding import ExpertRounding
from optkit.craft.quantization.rounding.rtn import WeightCodes, round_to_nearest
from optkit.facts.assignment import Assignment
from optkit.facts.errors import located
from optkit.ground import graph
from optkit.ground.recipe import Quantization
from optkit.ground.statistics.model_statistics import remark

_NUMBERS = 1 << 20  # bytes of a weight that are quantized at a time
_SEARCH: dict[str, Search] = {"rtn": "absmax", "auto": "mse", "mse": "mse"}


def is_for(
    model: ir.Model,
    assignment: Assignment,
    rules: Rules,
    settings: Quantization,
    *,
    learned: bool = False,
) -> bool:
    """Whether the planned weights are so large that they are in data files, and all of them use a
    method that works block by block, without data or solver. `learned`: the inputs of products are
    known, so that "auto" selects a solver."""
    cells = assignment.planned().keys() & assignment.recurrences
    if cells or (settings.weights == "auto" and learned):
        return False
    planned = assignment.quantized()
    weights = {constant(node) for node in model.graph if node.name in planned}
    return (
        sum(w.const_value.nbytes for w in weights if w.const_value) >= graph.INLINE_LIMIT
        and settings.weights in _SEARCH
        and all(rules[name].weights_in_blocks for name in set(planned.values()))
    )


def quantize(
    source: Path,
    out: Path,
    assignment: Assignment,
    rules: Rules,
    settings: Quantization,
    *,
    carrier: np.dtype | type,
) -> QuantLog:
    """Quantize the carrier graph in file `source` into the new file `out`, for any size of the
    graph.

    Raises InputRefused for a weight that is not finite, or a graph that is not valid.
    """
    model = graph.load(source)
    streaming = apply(model, assignment, rules, settings, carrier=carrier)
    rounding = ExpertRounding(settings)
    experts = quantize_experts(model, expert_formats(assignment, rules), rounding)
    graph.save(model, out)
    graph.check(out)
    log = streaming.log()
    return replace(log, experts=experts, warnings=(*log.warnings, *unsimulated(carrier)))


@dataclass(frozen=True)
class Streaming:
    """The changes of `apply`. `log` is complete after the graph has been saved."""

    nodes: dict[str, CodedNode]
    weights: dict[Place, Weight]

    def log(self) -> QuantLog:
        seen = {place: weight.seen for place, weight in self.weights.items()}
        nodes = {name: node.logged(seen[node.place].span) for name, node in self.nodes.items()}
        remarks = {
            f"weight {w.name!r} {what}" for w in self.weights.values() if (what := w.seen.remark())
        }
        clamped = sum(pieces.clamped for pieces in seen.values())
        return QuantLog(nodes, {}, clamped, tuple(sorted(remarks)))


def apply(
    model: ir.Model,
    assignment: Assignment,
    rules: Rules,
    settings: Quantization,
    *,
    carrier: np.dtype | type,
) -> Streaming:
    """Let the assigned nodes of the carrier graph read codes that `graph.save` computes, in place.
    `graph.save` then raises InputRefused for a weight that is not finite."""
    codings = Codings(assignment, rules, settings.block_size, np.dtype(carrier))
    weights: dict[Place, Weight] = {}

    def key(node: ir.Node) -> tuple[ir.Value, bool, Coding]:
        return constant(node), weighted_nodes.is_turned(node), codings.of(node)

    def tensors(node: ir.Node, place: Place) -> list[ir.TensorProtocol]:
        weights[place] = Weight.of(node, codings.of(node), _SEARCH[settings.weights])
        return weights[place].tensors()

    return Streaming(codings.write(model, key, tensors), weights)


class _Seen(NamedTuple):
    """The figures of a weight's pieces so far: extremes of its numbers and of its scales."""

    low: float = np.inf
    high: float = -np.inf
    span: tuple[float, float] = (np.inf, 0.0)
    clamped: int = 0

    def joined(self, low: float, high: float, quantized: WeightCodes) -> _Seen:
        scale = quantized.scale.scale
        return _Seen(
            min(self.low, low),
            max(self.high, high),
            (min(self.span[0], float(scale.min())), max(self.span[1], float(scale.max()))),
            self.clamped + quantized.scale.clamped,
        )

    def remark(self) -> str | None:
        return remark(self.low, self.high)


@dataclass(eq=False)
class Weight:
    """A stored matrix that is rounded to nearest piece by piece, with the figures `seen` so far."""

    name: str
    tensor: ir.TensorProtocol
    transposed: bool  # stored as [N, K]
    coding: Coding
    search: Search
    seen: _Seen = field(default_factory=_Seen)

    @classmethod
    def of(cls, node: ir.Node, coding: Coding, search: Search) -> Weight:
        value = constant(node)
        assert value.const_value is not None
        transposed = coding.turned ^ weighted_nodes.is_turned(node)
        return cls(str(value.name), value.const_value, transposed, coding, search)

    def tensors(self) -> list[ir.TensorProtocol]:
        """The stored tensors of the coding, which are computed when they are read."""
        return graph.computed(self.coding.forms(), self._pieces)

    def _pieces(self) -> Iterator[tuple[np.ndarray, ...]]:
        self.seen = _Seen()
        with located(f"weight {self.name!r}"):
            for low, high, quantized in graph.spread(self._quantize, self._read()):
                self.seen = self.seen.joined(low, high, quantized)
                scale = quantized.scale
                yield self.coding.parts(quantized.codes, scale.scale, scale.zero_point)

    def _read(self) -> Iterator[np.ndarray]:
        """Pieces of the matrix [K, N]: some of its columns, or of its rows."""
        (k, n), by_columns = self.coding.size, self.coding.by_columns
        if by_columns:
            count = 2 * max(_NUMBERS // k // 2, 1)
        else:
            count = max(_NUMBERS // n // self.coding.block, 1) * self.coding.block
        read = graph.rows if by_columns == self.transposed else graph.columns
        return (a.T if self.transposed else a for a in read(self.tensor, count))

    def _quantize(self, piece: np.ndarray) -> tuple[float, float, WeightCodes]:
        coding = self.coding
        wide = piece.astype(np.float32)  # numpy is slow in comparing half-precision numbers
        held = piece.astype(coding.carrier, copy=False)
        quantized = round_to_nearest(held, coding.format, coding.carrier, search=self.search)
        return float(wide.min()), float(wide.max()), quantized
