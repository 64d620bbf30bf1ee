"""Mul, Div, Add and Sub by a constant per channel after a linear layer.

s · (W x + b) = (s W) x + s b,   (W x + b) + t = W x + (b + t);   Div: s = 1 / c,   Sub: t = −c.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.rule import Decline, Rule
from optkit.craft.fusion.standard import linear
from optkit.ground import graph


def check(node: ir.Node) -> linear.Affine | Decline | None:
    split = _operands(node)
    if split is None:
        return None
    source, numbers = split
    layer = linear.find(source)
    if layer is None or _is_bias(node, source, layer):
        return None
    if isinstance(layer, Decline):
        return layer
    if source.shape is None:
        return Decline("the shape of its input is not known")
    constant = linear.per_channel(numbers, layer, len(source.shape))
    if constant is None:
        return Decline("its constant is not one number per output channel")
    if node.op_type == "Div" and not constant.all():
        return Decline("it divides by zero")
    if node.op_type in ("Mul", "Div"):
        scale, shift = (constant if node.op_type == "Mul" else 1 / constant), np.zeros(1)
    else:
        scale, shift = np.ones(1), (constant if node.op_type == "Add" else -constant)
    return linear.compose(node, layer, scale, shift)


def _operands(node: ir.Node) -> tuple[ir.Value, np.ndarray] | None:
    """(activation, constant); None unless there is one of each, in an order that can be folded."""
    for index in (0, 1) if node.op_type in ("Mul", "Add") else (0,):
        source, numbers = node.inputs[index], graph.array(node.inputs[1 - index])
        if source is not None and numbers is not None and not graph.is_constant(source):
            return source, numbers
    return None


def _is_bias(node: ir.Node, source: ir.Value, layer: linear.LinearNode | Decline) -> bool:
    """Whether it is the Add that holds the bias of a MatMul, which needs no folding."""
    producer = source.producer()
    product = producer is not None and producer.op_type == "MatMul"
    return product and node.op_type in ("Add", "Sub") and not isinstance(layer, Decline)


fold_scale: Rule[linear.Affine] = Rule(
    "fold_scale", frozenset({"Mul", "Div"}), check, linear.absorb
)
fold_shift: Rule[linear.Affine] = Rule(
    "fold_shift", frozenset({"Add", "Sub"}), check, linear.absorb
)
