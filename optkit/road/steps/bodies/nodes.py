"""The nodes of a graph, as the rules of `explain` read them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from optkit.facts.node_cost import NodeCost
from optkit.facts.timed_layers import NodeWork
from optkit.ground import graph


def nodes_of(model: ir.Model, costs: Mapping[str, NodeCost]) -> dict[str, NodeWork]:
    """The nodes by name, and also by the name of each node that was merged into them."""
    nodes: dict[str, NodeWork] = {}
    for node in model.graph:
        makers = [value.producer() for value in node.inputs if value is not None]
        reads = [n for maker in makers if maker for n in graph.names_in(str(maker.name))]
        cost = costs[str(node.name)]
        facts = NodeWork(
            node.op_type, cost.macs, cost.weight_bytes, tuple(dict.fromkeys(reads)), _summed(node)
        )
        nodes |= dict.fromkeys(graph.names_in(str(node.name)), facts)
    return nodes


def _summed(node: ir.Node) -> int | None:
    """K of [M, K] × [K, N]; None for another operator, or if K is dynamic."""
    if node.op_type not in ("MatMul", "Gemm") or node.inputs[1] is None:
        return None
    shape, turned = node.inputs[1].shape, node.attributes.get_int("transB", 0)
    if shape is None or len(shape) < 2:
        return None
    size = shape[-1 if turned else -2]
    return size if isinstance(size, int) else None
