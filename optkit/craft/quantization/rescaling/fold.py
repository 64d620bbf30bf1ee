"""Where a positive factor per channel can go: from a value back to the constants from which it is
computed.

A factor moves backwards as labels (see `channels`), past the nodes that allow it (see `rules`),
until constants absorb it. This is exact if no other node reads the values that change.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.rescaling.rules import FoldObstacle, FoldStep, Sink, touches, ways
from optkit.ground import graph

Use = tuple[ir.Node, int]
"""A node and the index of its input."""

SHARED_LIMIT_BYTES = 1 << 16
"""A constant with other readers is copied if it is no larger than this (a bias, a norm's scale)."""


@dataclass(frozen=True)
class FoldPath:
    """The way of a factor. `values`: all values that it scales, the given value first."""

    sinks: tuple[Sink, ...] = ()
    values: tuple[tuple[ir.Value, np.ndarray], ...] = ()
    ties: tuple[tuple[int, int], ...] = ()  # channels that must share a factor

    def __add__(self, other: FoldPath) -> FoldPath:
        return FoldPath(
            self.sinks + other.sinks, self.values + other.values, self.ties + other.ties
        )


def find_fold(
    value: ir.Value, labels: np.ndarray, readers: Collection[Use]
) -> FoldPath | FoldObstacle:
    """How `value` can be multiplied by a factor per label without an additional operator.

    `readers`: the uses that compensate for it. If anything else reads the value, there is no way.
    """
    if value.is_graph_output():
        return FoldObstacle(f"{value.name} is a model output")
    for use in value.uses():
        if (use.node, use.idx) not in readers and touches(use.node, labels):
            return FoldObstacle(f"{use.node.name} ({use.node.op_type}) reads {value.name} too")
    node = value.producer()
    if node is None:
        return FoldObstacle(f"{value.name} is a model input or a constant")
    past = ways(node, value, labels)
    if isinstance(past, FoldObstacle):
        return past
    refused = FoldObstacle(f"{node.op_type} {node.name} has no operand that takes the factor")
    for way in past:
        path = _follow(node, way)
        if isinstance(path, FoldPath):
            return FoldPath(values=((value, labels),)) + path
        refused = path
    return refused


def _follow(node: ir.Node, way: FoldStep) -> FoldPath | FoldObstacle:
    path = FoldPath(way.sinks, ties=way.ties)
    for sink in way.sinks:
        if reason := _why_fixed(sink):
            return FoldObstacle(reason)
    for index, labels in way.up:
        operand = node.inputs[index]
        assert operand is not None
        above = find_fold(operand, labels, {(node, index)})
        if isinstance(above, FoldObstacle):
            return above
        path += above
    return path


def _why_fixed(sink: Sink) -> str | None:
    """Why the constant cannot be changed for this node; None if it can."""
    value = sink.node.inputs[sink.index]
    numbers = graph.array(value)
    if value is None or numbers is None or not np.issubdtype(numbers.dtype, np.floating):
        return f"an operand of {sink.node.name} is not a constant float tensor"
    shared = len(value.uses()) > 1 or value.is_graph_output()
    is_weight = sink.index == 1 and sink.node.op_type in graph.WEIGHTED
    if shared and (is_weight or numbers.nbytes > SHARED_LIMIT_BYTES):
        others = sorted({str(u.node.name) for u in value.uses() if u.node is not sink.node})
        return f"{value.name} is shared with {', '.join(others) or 'another operand'}"
    return None
