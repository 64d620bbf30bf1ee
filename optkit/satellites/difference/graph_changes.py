"""Two graphs: nodes by name, dtypes of products, weights by digest, scales by factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from pydantic import JsonValue

from optkit.facts.codec import to_json
from optkit.facts.documents.diff import (
    ChangedNode,
    ChangedWeight,
    GraphDiff,
    MovedScale,
    NamedNode,
    NodeChanges,
    OperatorCount,
    ProductChange,
    ScaleChanges,
    WeightChanges,
    WeightFacts,
)
from optkit.road.steps.outline import GraphOutline, NodeOutline, WeightOutline

QDQ = ("QuantizeLinear", "DequantizeLinear")
_TOLERANCE = 1e-6  # relative: a scale that is only stored in another float type counts as equal


@dataclass(frozen=True)
class OutlinedGraph:
    """A graph as the step `outline` describes it; scales float64 [count] by tensor."""

    data: GraphOutline
    scales: Mapping[str, np.ndarray]


def compare(a: OutlinedGraph, b: OutlinedGraph) -> GraphDiff:
    """`graph` of optkit.diff/v1. Nodes with the same name are the same node. If only the names of a
    node's inputs differ, it is `rewired`."""
    diff = GraphDiff(
        same=True,
        opset=_both("opset", a, b),
        inputs=_both("inputs", a, b),
        outputs=_both("outputs", a, b),
        operators=_operators(a.data, b.data),
        nodes=_nodes(a.data, b.data),
        precision=_precision(a.data, b.data),
        weights=_weights(a.data, b.data),
        scales=_scales(a.scales, b.scales),
    )
    return diff.model_copy(update={"same": _same(diff)})


def _both(field: str, a: OutlinedGraph, b: OutlinedGraph) -> tuple[JsonValue, JsonValue]:
    return to_json(getattr(a.data, field)), to_json(getattr(b.data, field))


def _same(diff: GraphDiff) -> bool:
    nodes, weights = diff.nodes, diff.weights
    return all(a == b for a, b in (diff.opset, diff.inputs, diff.outputs)) and not (
        diff.operators
        or diff.precision
        or nodes.rewired
        or diff.scales.moved
        or nodes.added
        or nodes.removed
        or nodes.changed
        or weights.added
        or weights.removed
        or weights.changed
    )


def _operators(a: GraphOutline, b: GraphOutline) -> tuple[OperatorCount, ...]:
    """Operators whose number of nodes differs."""
    before, after = (Counter(node.op for node in side.nodes) for side in (a, b))
    return tuple(
        OperatorCount(op=op, a=before[op], b=after[op])
        for op in sorted({*before, *after})
        if before[op] != after[op]
    )


def _nodes(a: GraphOutline, b: GraphOutline) -> NodeChanges:
    before, after = ({node.name: node for node in side.nodes} for side in (a, b))
    changed, rewired = [], 0
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        attributes = sorted(
            key
            for key in {*old.attributes, *new.attributes}
            if old.attributes.get(key) != new.attributes.get(key)
        )
        if attributes or old.op != new.op:
            both = (old.op, new.op)
            changed.append(ChangedNode(name=name, op=both, attributes=tuple(attributes)))
        elif old.inputs != new.inputs:
            rewired += 1
    return NodeChanges(
        a=len(a.nodes),
        b=len(b.nodes),
        added=_only(after, before),
        removed=_only(before, after),
        changed=tuple(sorted(changed, key=lambda row: row.name)),
        rewired=rewired,
    )


def _only(
    these: Mapping[str, NodeOutline], those: Mapping[str, NodeOutline]
) -> tuple[NamedNode, ...]:
    return tuple(
        NamedNode(name=name, op=node.op) for name, node in these.items() if name not in those
    )


def _precision(a: GraphOutline, b: GraphOutline) -> tuple[ProductChange, ...]:
    """Products of the same name that multiply in other dtypes."""
    before, after = (
        {node.name: node.multiplies for node in side.nodes if node.multiplies} for side in (a, b)
    )
    return tuple(
        ProductChange(node=name, a=before[name], b=after[name])
        for name in before
        if name in after and before[name] != after[name]
    )


def _weights(a: GraphOutline, b: GraphOutline) -> WeightChanges:
    before, after = ({weight.name: weight for weight in side.weights} for side in (a, b))
    return WeightChanges(
        bytes=(_bytes(before), _bytes(after)),
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(
            ChangedWeight(name=name, a=_weight(before[name]), b=_weight(after[name]))
            for name in before
            if name in after and before[name].digest != after[name].digest
        ),
    )


def _bytes(weights: Mapping[str, WeightOutline]) -> int:
    return sum(weight.bytes for weight in weights.values())


def _weight(weight: WeightOutline) -> WeightFacts:
    return WeightFacts(dtype=weight.dtype, shape=weight.shape, bytes=weight.bytes)


def _scales(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> ScaleChanges:
    """Scales of the same tensor that differ, the largest difference first: the lowest and the
    highest factor over the channels; null if the number of scales differs."""
    moved = []
    for name in a.keys() & b.keys():
        old, new = a[name], b[name]
        count = (old.size, new.size)
        if old.size != new.size:
            moved.append(MovedScale(tensor=name, count=count))
        elif not np.allclose(old, new, rtol=_TOLERANCE, atol=0.0):
            factors = new / np.where(old == 0, np.nan, old)
            ends = (float(np.nanmin(factors)), float(np.nanmax(factors)))
            known = all(map(np.isfinite, ends))
            moved.append(MovedScale(tensor=name, count=count, factor=ends if known else None))
    furthest = sorted(moved, key=lambda row: (-_distance(row.factor), row.tensor))
    return ScaleChanges(a=len(a), b=len(b), moved=tuple(furthest))


def _distance(factor: tuple[float, float] | None) -> float:
    if factor is None:
        return float("inf")
    return max(abs(float(np.log(abs(end)))) if end else float("inf") for end in factor)
