"""BatchNormalization at inference is an affine map per channel; it is folded into the layer before.

    BN(y) = γ (y − μ) / √(σ² + ε) + β = s y + t   with   s = γ / √(σ² + ε),   t = β − s μ
(Ioffe & Szegedy, arXiv:1502.03167; folding: Jacob et al., arXiv:1712.05877, section 3.2).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.pattern import dims
from optkit.craft.fusion.rule import Decline, Rule
from optkit.craft.fusion.standard import linear
from optkit.ground import graph


def check(node: ir.Node) -> linear.Affine | Decline | None:
    if node.attributes.get_int("training_mode", 0):
        return Decline("it is in training mode")
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return Decline("its running statistics are used")
    source = node.inputs[0]
    layer = linear.find(source)
    if isinstance(layer, Decline):
        return layer
    if layer is None:
        producer = source.producer() if source is not None else None
        return Decline(f"its input is made by {producer.op_type if producer else 'no node'}")
    arrays = (graph.array(value) for value in node.inputs[1:5])
    parameters = [numbers.astype(np.float64) for numbers in arrays if numbers is not None]
    if len(parameters) < 4:
        return Decline("its parameters are not constant")
    if layer.channel_axis == -1 and dims(source, 2) is None:
        return Decline("its channels are not the columns of the product")
    gamma, beta, mean, variance = parameters
    scale = gamma / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    return linear.compose(node, layer, scale, beta - scale * mean)


fold_batchnorm: Rule[linear.Affine] = Rule(
    "fold_batchnorm", frozenset({"BatchNormalization"}), check, linear.absorb
)
