"""Normalizations in the form with the fastest CPU kernels of ONNX Runtime.

RMSNorm (Zhang & Sennrich, arXiv:1910.07467):
    y = g · x / √(mean(x²) + ε)     over the last axis: one RMSNormalization for six or seven nodes

A norm without gain and bias is the operator with a gain of ones.

LayerNormalization after a residual sum: ONNX Runtime fuses Add + LayerNormalization into
SkipLayerNormalization, whose CPU kernel takes three times as long as the two nodes (1.05 instead of
0.33 ms at [8, 128, 384]). Sum(a, b) = Add(a, b), bit for bit, and the optimizer does not match it.
The same is true of SkipSimplifiedLayerNormalization, which takes twice as long. The Sum also adds
the bias of its product:

    Sum(product, bias, residual) = Add(Add(product, bias), residual)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.write import Attributes, constant, put, too_old
from optkit.craft.fusion.pattern import biased_product, made_by, read_once, reader, sides
from optkit.craft.fusion.rule import Decline, Rule
from optkit.craft.fusion.standard.layer_norm import Norm, over_root_mean_square, uncentred
from optkit.ground import graph


@dataclass(frozen=True)
class BareNorm:
    """`node` normalizes the `width` features of `source` as `op` does with a gain of ones."""

    node: ir.Node
    op: str
    source: ir.Value
    width: int
    epsilon: float


@dataclass(frozen=True)
class Residual:
    """`node` computes (product + bias) + residual; `add` computes the first sum."""

    node: ir.Node
    add: ir.Node
    product: ir.Value
    bias: ir.Value
    residual: ir.Value


def check_rms(node: ir.Node) -> Norm | Decline | None:
    for normalized, gain in sides(node):
        root = over_root_mean_square(normalized)
        if root is None:
            continue
        source, epsilon = root
        if gain is None or gain.dtype != ir.DataType.FLOAT or source.dtype != gain.dtype:
            return Decline("its gain is not float32")
        numbers, shape = graph.array(gain), source.shape
        if numbers is None or numbers.ndim != 1 or shape is None or shape[-1] != numbers.size:
            return Decline("its gain is not one constant per feature")
        return too_old(node) or Norm(node, source, gain, epsilon)
    return None


def normalize(match: Norm) -> str:
    node = match.node
    attributes: Attributes = {"axis": -1, "epsilon": match.epsilon}
    put(
        node, "RMSNormalization", [match.source, match.gain], node.outputs[0], attributes=attributes
    )
    return "one operator"


def check_bare(node: ir.Node) -> BareNorm | Decline | None:
    root = over_root_mean_square(node.outputs[0])
    if root is None or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    source, epsilon = root
    width = source.shape[-1] if source.shape else None
    if not isinstance(width, int):
        return Decline("the number of its features is not known")
    before = uncentred(source)
    if before is not None:
        return BareNorm(node, "LayerNormalization", before, width, epsilon)
    return too_old(node) or BareNorm(node, "RMSNormalization", source, width, epsilon)


def normalize_bare(match: BareNorm) -> str:
    node, ones = match.node, np.ones(match.width, np.float32)
    gain = constant(graph.owner(node), f"ones.{match.width}", ones)
    attributes: Attributes = {"axis": -1, "epsilon": match.epsilon}
    put(node, match.op, [match.source, gain], node.outputs[0], attributes=attributes)
    return "one operator with a gain of ones"


def check_sum(node: ir.Node) -> ir.Node | None:
    shapes = [value.shape if value is not None else None for value in node.inputs]
    if any(shape is None or len(shape) != 3 for shape in shapes):
        return None
    if any(graph.is_constant(value) for value in node.inputs):
        return None
    norm = reader(node.outputs[0], "LayerNormalization")
    return node if norm is not None and norm.inputs[0] is node.outputs[0] else None


def keep_apart(node: ir.Node) -> str:
    node.op_type = "Sum"
    return "the sum stays apart from its LayerNormalization"


def check_bias(node: ir.Node) -> Residual | Decline | None:
    for branch, residual in sides(node) if len(node.inputs) == 2 else ():
        add = made_by(branch, "Add")
        biased = biased_product(add) if add is not None else None
        if add is None or biased is None or residual is None or graph.is_constant(residual):
            continue
        product, bias = biased
        if not read_once(add.outputs[0]) or not read_once(product):
            return Decline("the branch is also used elsewhere")
        return Residual(node, add, product, bias, residual)
    return None


def take_bias(match: Residual) -> str:
    node, inputs = match.node, [match.product, match.bias, match.residual]
    put(node, "Sum", inputs, node.outputs[0], removed=(node, match.add))
    return "the bias is added on the way"


rms_norm: Rule[Norm] = Rule("rms_norm", frozenset({"Mul"}), check_rms, normalize)
bare_norm: Rule[BareNorm] = Rule("bare_norm", frozenset({"Mul", "Div"}), check_bare, normalize_bare)
sum_apart: Rule[ir.Node] = Rule("sum_apart", frozenset({"Add"}), check_sum, keep_apart)
sum_bias: Rule[Residual] = Rule("sum_bias", frozenset({"Add", "Sum"}), check_bias, take_bias)
