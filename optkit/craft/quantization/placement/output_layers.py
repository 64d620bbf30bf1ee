"""The layers whose results are the predictions of a model: no later layer can reduce their errors.

In a detector these are the last convolutions of the heads, whose results are decoded to boxes, and
a product that averages the bins of a distribution (DFL, Li et al. 2020, arXiv:2006.04388). That
only these stay in float is also what Ultralytics' exports of INT8 do.
"""

from __future__ import annotations

from itertools import permutations

import onnx_ir as ir

from optkit.craft.quantization.placement import weighted_nodes
from optkit.ground import graph

_LAYOUT = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Identity")
_OF_FEATURES = frozenset(
    {
        "Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Clip", "Gelu", "HardSwish", "Swish",
        "Mish", "Softplus", "ThresholdedRelu", "BatchNormalization", "InstanceNormalization",
        "GroupNormalization", "LayerNormalization", "RMSNormalization", "MaxPool", "AveragePool",
        "GlobalAveragePool", "GlobalMaxPool",
    }
)  # fmt: skip
"""Operators that follow a layer inside of a network. Scores and boxes are computed with others:
Sigmoid, Softmax, Exp, Tanh."""
_PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum", "Attention", "LSTM", "GRU", "RNN"})


def last_layers(model: ir.Model) -> frozenset[ir.Node]:
    """The weighted nodes whose result reaches a model output without being combined with another
    value (logits, maps; not the branches of a residual sum)."""
    layers = set()
    for output in model.graph.outputs:
        value: ir.Value | None = output
        while value is not None:
            node = value.producer()
            if node is None:
                break
            if graph.constant_weight(node) is not None:
                layers.add(node)
                break
            read = weighted_nodes.computed(node)
            value = read[0] if len(read) == 1 else None
    return frozenset(layers)


def output_layers(model: ir.Model) -> frozenset[ir.Node]:
    """The last layers, and the bare layers whose results are combined to predictions: without an
    activation function, a normalization or a pooling in between. Also those before an average of
    bins."""
    layers, seen = set(last_layers(model)), set()
    waiting = list(model.graph.outputs)
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        if graph.constant_weight(node) is not None:
            layers.add(node)
            if averages_bins(node):
                waiting += weighted_nodes.computed(node)
        elif not _is_layer(node):
            read = weighted_nodes.computed(node)
            if not _is_residual(node, read):
                waiting += read
    return frozenset(layers)


def averages_bins(node: ir.Node) -> bool:
    """Whether the node computes the mean of a distribution over bins: one number of a Softmax. Its
    weights are the values of the bins."""
    shape = weighted_nodes.constant(node).shape
    assert shape is not None
    sizes = shape.numpy()
    if (sizes[0] if node.op_type == "Conv" or len(sizes) < 2 else min(sizes)) != 1:
        return False
    value = node.inputs[0]
    while value is not None and (producer := value.producer()) is not None:
        if producer.op_type == "Softmax":
            return True
        if producer.op_type not in _LAYOUT:
            return False
        value = producer.inputs[0]
    return False


def _is_residual(node: ir.Node, values: list[ir.Value]) -> bool:
    """Whether one of the values is computed from another one: a residual sum, a gate (SiLU), a
    dense connection. Predictions may stand next to each other, such as an angle and the box that it
    turns, if no layer is between them."""
    return any(
        value in _before(other)
        and not (node.op_type == "Concat" and value in _before(other, bare=True))
        for value, other in permutations(values, 2)
    )


def _before(value: ir.Value, *, bare: bool = False) -> set[ir.Value]:
    """All values from which a value is computed; `bare`: without a layer in between."""
    found: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        producer = waiting.pop().producer()
        if producer is None or (bare and _is_layer(producer)):
            continue
        read = [one for one in producer.inputs if one is not None and one not in found]
        waiting += read
        found.update(read)
    return found


def _is_layer(node: ir.Node) -> bool:
    return (
        graph.constant_weight(node) is not None
        or node.op_type in _OF_FEATURES | _PRODUCTS
        or bool(node.domain)
    )
