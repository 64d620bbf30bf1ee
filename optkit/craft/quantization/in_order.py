"""Weights that make up for the errors of the quantized layers before them (GPTAQ).

GPTQ rounds a weight w for the inputs X of its product in the float graph. In the quantized graph
the product reads other inputs, X'. So here product after product, in the order of the graph, gets
the weight v whose rounding to w' is also the best one for the product itself:

    min |X' w' - X w|²  =  min |X' (w' - v)|²,    v = w + (X'ᵀX')⁻¹ X'ᵀ(X - X') w

(Li et al. 2025, GPTAQ, arXiv:2504.02692, who compensate row by row instead of in v). If the product
is added to another value (a residual connection), X w is replaced by what makes the sum S that of
the float graph: X'ᵀ(X - X') w becomes X'ᵀ(S - S'). The codes w' are those of `choose_qparams` for v
and the second moments of X'. Both graphs run side by side as one:

    inputs ──┬──► float graph ────────────── X, S ──┐
             └──► graph with w' so far ─── X', S' ──┴──► [X', X - X', S - S'] ──► second moments
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics.qparams import QParams, WeightQParams
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.placement.qdq_placement import Rules
from optkit.craft.quantization.placement.read_weight import MATRIX, matrix
from optkit.craft.quantization.rounding.gptaq import compensated
from optkit.facts.assignment import Assignment
from optkit.ground import graph
from optkit.ground.statistics import Moments, Statistics

_PREFIX = "in_order."  # of the names of the graph with codes
_FEWEST = 4  # rows per channel: from fewer, errors are not learned
# of the least squares, as a share of the mean second moment: 10 channels per row. With 5 to 13 rows
# per channel a decoder (W4, held-out samples) lost 0.15 dB with 0.01 and gained 0.26 dB with 1;
# with 18 to 51 rows it gained 0.26 dB and 0.35 dB
_DAMPING, _DAMPED = 10.0, (0.01, 1.0)

Choose = Callable[[ir.Model, Assignment, Statistics], QParams]
"""As `choose_qparams`, with its settings."""
Errors = tuple[Moments, np.ndarray]
"""The second moments of X', and the means of X'ᵀ[X - X', T], float64 [K, M]."""
Advance = Callable[[ir.Model, Sequence[str], int], Errors | None]
"""Runs a segment over all samples, with the values that the one before it left, and leaves those of
these names. The first output of the segment is [X', X - X', T], with so many channels of X'. None
if it has no numbers."""


@dataclass(frozen=True)
class ReaderGroup:
    """Products that read one value, by name. `source`: under which it was calibrated."""

    source: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class CompensatedWeights:
    """The statistics, with the second moments of X', and the numbers of the weights v."""

    statistics: Statistics
    qparams: QParams


def groups(
    model: ir.Model, assignment: Assignment, statistics: Statistics, rules: Rules
) -> list[ReaderGroup]:
    """The products that have weights in blocks alone, and inputs with second moments of enough
    rows, in the order of the graph."""
    planned = assignment.quantized()
    nodes: dict[str, list[str]] = {}
    for node in model.graph:
        if node.op_type not in MATRIX or (name := str(node.name)) not in planned:
            continue
        source = str(weighted_nodes.uncast(_input(node)).name)
        seen = statistics.values.get(source)
        moments = None if seen is None else seen.moments
        in_blocks = rules[planned[name]].weights_in_blocks
        if in_blocks and moments is not None and moments.count >= _FEWEST * len(moments.diagonal):
            nodes.setdefault(source, []).append(name)
    return [ReaderGroup(source, tuple(names)) for source, names in nodes.items()]


def compensate(
    model: ir.Model,
    statistics: Statistics,
    assignment: Assignment,
    found: Sequence[ReaderGroup],
    *,
    choose: Choose,
    advance: Advance,
    progress: Callable[[str, float], None],
) -> CompensatedWeights:
    """Give the products of these groups the weights v, in place. A weight that several nodes read
    stays as it is."""
    pair = _Pair.of(model, found)
    nodes = {str(node.name): node for node in model.graph}
    weights: dict[str, WeightQParams] = {}
    warnings: list[str] = []
    for done, group in enumerate(found):
        progress(f"weights of {group.nodes[0]!r} and its group", done / len(found))
        segment = pair.segment(done)
        seen = advance(segment.graph, pair.crossing[done], segment.channels)
        if seen is None:
            continue
        inputs, products = seen
        statistics = _with_moments(statistics, group.source, inputs)
        own = [nodes[name] for name in group.nodes if weighted_nodes.reads_alone(nodes[name])]
        _move_weights(own, inputs, segment.missing(products, own))
        planned = {name: assignment.nodes[name] for name in group.nodes}
        numbers = choose(model, replace(assignment, nodes=planned), statistics)
        for name in group.nodes:
            pair.round(name, numbers.weights[name])
        # a weight that several nodes read has the codes of the first one
        weights |= {str(node.name): numbers.weights[str(node.name)] for node in own}
        warnings += numbers.warnings
    return CompensatedWeights(statistics, QParams(weights=weights, warnings=tuple(warnings)))


def _move_weights(own: Sequence[ir.Node], inputs: Moments, missing: Sequence[np.ndarray]) -> None:
    """From w to v."""
    if not own:
        return
    weights = [matrix(node) for node in own]
    damping = float(np.clip(_DAMPING * len(weights[0]) / inputs.count, *_DAMPED))
    moved = compensated(
        np.concatenate(weights, axis=1), inputs.matrix(), np.concatenate(missing, axis=1), damping
    )
    ends = np.cumsum([w.shape[1] for w in weights])[:-1]
    for node, v in zip(own, np.split(moved, ends, axis=1), strict=True):
        weighted_nodes.replace_weight(node, v)


def crossing(model: ir.Model, found: Sequence[ReaderGroup]) -> list[tuple[str, ...]]:
    """For each group, the values that are computed before its products and read by them or after
    them."""
    places = {str(node.name): place for place, node in enumerate(model.graph)}
    parts = graph.cut(model, [places[group.nodes[0]] for group in found])
    reads = {part.nodes[0]: part.reads for part in parts}
    return [reads[group.nodes[0]] for group in found]


@dataclass(frozen=True)
class _Segment:
    """A segment whose first output is [X', X - X', T of each sum], `channels` of X', and the
    columns of the T behind them. Without products that are not added, there is no X - X'."""

    graph: ir.Model
    channels: int
    sums: dict[str, slice]

    def missing(self, products: np.ndarray, nodes: Sequence[ir.Node]) -> list[np.ndarray]:
        """For each product X'ᵀ(X - X') w or X'ᵀT, from X'ᵀ[X - X', T]."""
        names = [str(node.name) for node in nodes]
        return [
            products[:, self.sums[name]]
            if name in self.sums
            else products[:, : self.channels] @ matrix(node)
            for name, node in zip(names, nodes, strict=True)
        ]


@dataclass(frozen=True)
class _Pair:
    """The float graph, and beside it the one with the codes so far. `crossing`: for each group, the
    values of both that cross the border before its products."""

    model: ir.Model
    floats: dict[str, ir.Node]
    rounded: dict[str, ir.Node]
    groups: Sequence[ReaderGroup]
    crossing: list[list[str]]

    @classmethod
    def of(cls, model: ir.Model, found: Sequence[ReaderGroup]) -> _Pair:
        both, other = model.clone(), model.clone()
        floats = {str(node.name): node for node in both.graph}
        rounded = {str(node.name): node for node in other.graph}
        # nothing runs behind the last group
        borders = [[*names, *(f"{_PREFIX}{n}" for n in names)] for names in crossing(model, found)]
        borders[-1:] = [[]]
        _move(other.graph, both.graph)
        return cls(both, floats, rounded, found, borders)

    def segment(self, index: int) -> _Segment:
        """The segment from the border of the group before this one. The products of the group still
        have float weights."""
        parent, group = self.model.graph, self.groups[index]
        exact, found = (_input(own[group.nodes[0]]) for own in (self.floats, self.rounded))
        k = int(matrix(self.floats[group.nodes[0]]).shape[0])
        beside = {name: self._beside(name) for name in group.nodes}
        added = [ir.node("Sub", [exact, found])]
        error = added[0].outputs[0]
        parts, sums, end = [found], {}, 0
        if None in beside.values():
            parts.append(error)
            end = k
        for name, pair in beside.items():
            if pair is None:
                continue
            product = _without_bias(self.floats[name], error)
            rest = ir.node("Sub", pair)
            whole = ir.node("Add", [product.outputs[0], rest.outputs[0]])
            added += [product, rest, whole]
            parts.append(whole.outputs[0])
            width = int(matrix(self.floats[name]).shape[1])
            sums[name] = slice(end, end + width)
            end += width
        joined = ir.node("Concat", parts, {"axis": -1})
        out = joined.outputs[0]
        out.name, out.type = f"{_PREFIX}errors", ir.TensorType(ir.DataType.FLOAT)
        parent.extend([*added, joined])
        known = self.crossing[index - 1] if index else []
        fresh = [name for name in self.crossing[index] if name not in known]
        cut = graph.between(self.model, known, [out.name, *fresh])
        parent.remove([joined, *reversed(added)], safe=True)
        return _Segment(cut, k, sums)

    def round(self, name: str, numbers: WeightQParams) -> None:
        node = self.rounded[name]
        codes = graph.add_constant(self.model.graph, f"{_PREFIX}codes of {name}", numbers.floats())
        node.replace_input_with(1, codes)

    def _beside(self, name: str) -> list[ir.Value] | None:
        """The values in both graphs to which the product is added; None if it is not added."""
        pair = [_added(own[name]) for own in (self.floats, self.rounded)]
        found = [value for value in pair if value is not None]
        return found if len(found) == len(pair) else None


def _move(source: ir.Graph, target: ir.Graph) -> None:
    """Move all nodes to a graph with the same inputs and constants, under other names. The runtime
    computes equal values of both once."""
    for old, new in zip(source.inputs, target.inputs, strict=True):
        old.replace_all_uses_with(new)
    source.outputs.clear()
    for value in list(source.initializers.values()):
        value.replace_all_uses_with(target.initializers[str(value.name)])
    nodes = list(source)
    source.remove(nodes)
    for node in nodes:
        node.name = f"{_PREFIX}{node.name}"
        for value in node.outputs:
            value.name = f"{_PREFIX}{value.name}" if value.name else value.name
    target.extend(nodes)


def _input(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _without_bias(node: ir.Node, value: ir.Value) -> ir.Node:
    """The product of this value and the weight of the node."""
    return ir.Node("", node.op_type, [value, node.inputs[1]], node.attributes.values())


def _added(node: ir.Node) -> ir.Value | None:
    """The value to which the product is added, after its bias, if the sum has the shape of the
    product."""
    value = node.outputs[0]
    shape = value.shape
    while len(value.uses()) == 1 and not value.is_graph_output():
        (use,) = value.uses()
        if use.node.op_type != "Add":
            return None
        other = use.node.inputs[1 - use.idx]
        value = use.node.outputs[0]
        if not graph.is_constant(other):
            return other if shape is not None and value.shape == shape else None
    return None


def _with_moments(statistics: Statistics, name: str, moments: Moments) -> Statistics:
    value = replace(statistics.value(name), moments=moments)
    return replace(statistics, values={**statistics.values, name: value})
