"""Simulations with the values of their weights in place of codes and half-precision numbers.

ONNX Runtime packs a constant weight once, when it loads a graph. The codes of a weight it
dequantizes in each run, and packs the values each time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

import onnx_ir as ir

from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, simulator
from optkit.road.steps.file_names import GRAPH

_MOST_BYTES = 1 << 29  # of the values of all weights, which are in memory together


def dequantize_weights(model: ir.Model) -> bool:
    """Replace the DequantizeLinear and the Cast of constants by the values that ONNX Runtime
    computes. Returns whether there are any. If their values need more than `_MOST_BYTES`, the model
    stays as it is."""
    same: dict[object, list[ir.Node]] = {}
    for node in _of_constants(model):
        same.setdefault(_identity(node), []).append(node)
    sizes = [_size(nodes[0]) for nodes in same.values()]
    if not same or 4 * sum(sizes) > _MOST_BYTES:
        return False
    values = _values(model, [nodes[0] for nodes in same.values()])
    taken = graph.value_names(model)
    for nodes in same.values():
        name = str(nodes[0].outputs[0].name)
        held = graph.add_constant(
            model.graph, graph.claim_name(f"{name}/values", taken), values.pop(name)
        )
        for node in nodes:
            node.outputs[0].replace_all_uses_with(held)
        model.graph.remove(nodes, safe=True)
    return True


def _of_constants(model: ir.Model) -> Iterator[ir.Node]:
    for node in model.graph:
        constant = all(value is None or value.is_initializer() for value in node.inputs)
        if (
            node.op_type in ("DequantizeLinear", "Cast")
            and constant
            and not node.outputs[0].is_graph_output()
        ):
            yield node


def _size(node: ir.Node) -> int:
    """The number of its values."""
    codes = node.inputs[0]
    assert codes is not None and codes.const_value is not None
    return prod(codes.const_value.shape.numpy())


def _identity(node: ir.Node) -> object:
    """Equal for nodes that compute the same."""
    attributes = sorted((name, each.value) for name, each in node.attributes.items())
    return node.domain, node.inputs, tuple(attributes)


def _values(model: ir.Model, nodes: list[ir.Node]) -> Feed:
    """The outputs of these nodes by name."""
    made, fixed = [], dict[ir.Value, ir.Value]()
    for node in nodes:
        for value in filter(None, node.inputs):
            if value not in fixed:
                fixed[value] = ir.Value(
                    name=value.name,
                    shape=value.shape,
                    type=value.type,
                    const_value=value.const_value,
                )
        outputs = [ir.Value(name=one.name, shape=one.shape, type=one.type) for one in node.outputs]
        inputs = [None if value is None else fixed[value] for value in node.inputs]
        attributes = node.attributes.values()
        made.append(ir.Node(node.domain, node.op_type, inputs, attributes, outputs=outputs))
    alone = ir.Graph(
        [],
        [node.outputs[0] for node in made],
        nodes=made,
        initializers=list(fixed.values()),
        opset_imports=model.graph.opset_imports,
        name="weights",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / GRAPH
        graph.save(ir.Model(alone, ir_version=model.ir_version), path)
        with simulator().session(path, SessionOptions(level="none")) as session:
            return session.run({})
