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
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from optkit import graph
from optkit.assignment import Assignment
from optkit.quantization.numerics.qparams import QParams, WeightQParams
from optkit.quantization.placement import weighted_nodes
from optkit.quantization.placement.qdq_placement import Rules
from optkit.quantization.placement.read_weight import MATRIX, matrix
from optkit.quantization.rounding.gptaq import compensated
from optkit.statistics import Moments, Statistics

_PREFIX = "in_order."  # of the names of the graph with codes
_FEWEST = 4  # rows per channel: from fewer, errors are not learned
# of the least squares, as a share of the mean second moment: 10 channels per row. With 5 to 13 rows
# per channel a decoder (W4, held-out samples) lost 0.15 dB with 0.01 and gained 0.26 dB with 1;
# with 18 to 51 rows it gained 0.26 dB and 0.35 dB
_DAMPING, _DAMPED = 10.0, (0.01, 1.0)

Choose = Callable[[ir.Model, Assignment, Statistics], QParams]
"""As `choose_qparams`, with its settings."""
Observe = Callable[[ir.Model], Moments | None]
"""The second moments of the only output of a graph over all samples; None if it has no numbers."""


@dataclass(frozen=True)
class Group:
    """Products that read one value, by name. `source`: under which it was calibrated."""

    source: str
    nodes: tuple[str, ...]


def groups(
    model: ir.Model, assignment: Assignment, statistics: Statistics, rules: Rules
) -> list[Group]:
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
    return [Group(source, tuple(names)) for source, names in nodes.items()]


def compensate(
    model: ir.Model,
    statistics: Statistics,
    assignment: Assignment,
    found: Sequence[Group],
    *,
    choose: Choose,
    observe: Observe,
    progress: Callable[[str, float], None],
) -> Statistics:
    """Give the products of these groups the weights v, in place. Returns the statistics with the
    second moments of their inputs X'. A weight that several nodes read stays as it is."""
    pair = _Pair.of(model)
    nodes = {str(node.name): node for node in model.graph}
    for done, group in enumerate(found):
        progress(f"weights of {group.nodes[0]!r} and its group", done / len(found))
        errors = pair.errors(group)
        joint = observe(errors.graph)
        if joint is None:
            continue
        k = errors.channels
        inputs = Moments(joint.total[:k, :k].copy(), joint.diagonal[:k].copy(), joint.count)
        statistics = _with_moments(statistics, group.source, inputs)
        second = joint.matrix()
        for name in group.nodes:
            if weighted_nodes.reads_alone(nodes[name]):
                w = matrix(nodes[name])
                own = errors.sums.get(name)
                missing = second[:k, k : 2 * k] @ w if own is None else second[:k, own]
                damping = float(np.clip(_DAMPING * k / joint.count, *_DAMPED))
                v = compensated(w, second[:k, :k], missing, damping)
                weighted_nodes.replace_weight(nodes[name], v)
        planned = {name: assignment.nodes[name] for name in group.nodes}
        numbers = choose(model, replace(assignment, nodes=planned), statistics)
        for name in group.nodes:
            pair.round(name, numbers.weights[name])
    return statistics


@dataclass(frozen=True)
class _Errors:
    """A graph whose output is [X', X - X', S - S', …], `channels` of X, and the columns of the sums
    of products."""

    graph: ir.Model
    channels: int
    sums: dict[str, slice] = field(default_factory=dict)


@dataclass(frozen=True)
class _Pair:
    """The float graph, and beside it the one with the codes so far."""

    model: ir.Model
    floats: dict[str, ir.Node]
    rounded: dict[str, ir.Node]

    @classmethod
    def of(cls, model: ir.Model) -> _Pair:
        both, other = model.clone(), model.clone()
        floats = {str(node.name): node for node in both.graph}
        rounded = {str(node.name): node for node in other.graph}
        _move(other.graph, both.graph)
        return cls(both, floats, rounded)

    def errors(self, group: Group) -> _Errors:
        """The graph of the errors of a group. The products themselves have float weights."""
        parent, nodes = self.model.graph, list(group.nodes)
        exact, found = (_input(own[nodes[0]]) for own in (self.floats, self.rounded))
        k = int(matrix(self.floats[nodes[0]]).shape[0])
        pairs, sums, end = [(exact, found)], {}, 2 * k
        for name in nodes:
            whole, same = _sum(self.floats[name]), _sum(self.rounded[name])
            if whole is None or same is None:
                continue
            width = int(matrix(self.floats[name]).shape[1])
            pairs.append((whole, same))
            sums[name] = slice(end, end + width)
            end += width
        differences = [ir.node("Sub", each) for each in pairs]
        parts = [found, *(each.outputs[0] for each in differences)]
        joined = ir.node("Concat", parts, {"axis": -1})
        parent.extend([*differences, joined])
        out = joined.outputs[0]
        out.name, out.type = f"{_PREFIX}errors", ir.TensorType(ir.DataType.FLOAT)
        cut = graph.between(self.model, (), [out.name])
        parent.remove([joined, *differences], safe=True)
        return _Errors(cut, k, sums)

    def round(self, name: str, numbers: WeightQParams) -> None:
        node = self.rounded[name]
        constant = graph.new_constant(self.model.graph, f"{_PREFIX}{name}", numbers.floats())
        node.replace_input_with(1, constant)


def _move(source: ir.Graph, target: ir.Graph) -> None:
    """Move all nodes and constants to a graph with the same inputs, under other names."""
    for old, new in zip(source.inputs, target.inputs, strict=True):
        old.replace_all_uses_with(new)
    source.outputs.clear()
    for value in list(source.initializers.values()):
        source.initializers.pop(str(value.name))
        value.name = f"{_PREFIX}{value.name}"
        target.register_initializer(value)
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


def _sum(node: ir.Node) -> ir.Value | None:
    """The sum of the product, after its bias, and another value, in the same shape; None if it is
    not added."""
    value = node.outputs[0]
    shape = value.shape
    while len(value.uses()) == 1 and not value.is_graph_output():
        (use,) = value.uses()
        if use.node.op_type != "Add":
            return None
        other = use.node.inputs[1 - use.idx]
        value = use.node.outputs[0]
        if not graph.is_constant(other):
            return value if shape is not None and value.shape == shape else None
    return None


def _with_moments(statistics: Statistics, name: str, moments: Moments) -> Statistics:
    value = replace(statistics.value(name), moments=moments)
    return replace(statistics, values={**statistics.values, name: value})
