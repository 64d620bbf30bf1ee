"""Self-attention with its projections: three products of one input, their biases and the attention.

    [Q K V] = x [W_q W_k W_v] + [b_q b_k b_v]          com.microsoft.Attention, one node for seven

The kernel multiplies per head and keeps the heads separate for the scores; three products would
write rows that are split again. The time on a CPU is the same within 3 %, and a mask that only
hides keys needs no number per query. Products of codes remain separate products (`product`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.mask import Keys, as_integers, is_above_lowest, keys
from optkit.craft.fusion.ort.write import MICROSOFT, Attributes, constant, joined, put
from optkit.craft.fusion.pattern import (
    biased_product,
    dims,
    known_equal,
    made_by,
    of_float_product,
    read_once,
)
from optkit.craft.fusion.rule import GROWTH_LIMIT_BYTES, Decline, Rule
from optkit.ground import graph


@dataclass(frozen=True)
class Projection:
    """rows = source · weight + bias, computed by `nodes`, the last first."""

    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    nodes: tuple[ir.Node, ...]


@dataclass(frozen=True)
class ProjectedAttention:
    """`node` is an attention on the rows of three projections."""

    node: ir.Node
    parts: tuple[Projection, Projection, Projection]
    heads: int
    mask: ir.Value | Keys | None


def check(node: ir.Node) -> ProjectedAttention | Decline | None:
    heads = _heads(node)
    if heads is None:
        return None
    query, key, value = (_projection(each) for each in node.inputs[:3])
    if query is None or key is None or value is None:
        return None
    parts = (query, key, value)
    if not all(each.source is query.source for each in parts):
        return None
    if not all(read_once(step.outputs[0]) for each in parts for step in each.nodes):
        return Decline("its projections are also used elsewhere")
    if reason := _why_not_joined(parts):
        return Decline(reason)
    mask = _mask(node, query.source)
    return mask if isinstance(mask, Decline) else ProjectedAttention(node, parts, heads, mask)


def project(match: ProjectedAttention) -> str:
    node, owner = match.node, graph.owner(match.node)
    weight = joined(owner, f"{node.name}.weight", [each.weight for each in match.parts], axis=1)
    bias = constant(owner, f"{node.name}.bias", np.concatenate([*map(_bias, match.parts)]))
    attributes: Attributes = {
        "num_heads": match.heads,
        "scale": node.attributes.get_float("scale", 0.0),
    }
    inputs: list[ir.Value | None] = [match.parts[0].source, weight, bias]
    if isinstance(match.mask, Keys):
        inputs.append(as_integers(match.mask.present, node))
        attributes = {**attributes, "mask_filter_value": match.mask.low}
    elif match.mask is not None:
        inputs += [None, None, match.mask]
    put(
        node,
        "Attention",
        inputs,
        node.outputs[0],
        attributes=attributes,
        domain=MICROSOFT,
        removed=(node, *(step for part in match.parts for step in part.nodes)),
    )
    return "with its projections"


def _heads(node: ir.Node) -> int | None:
    """The heads of an attention on rows, if it has as many key heads as query heads, no cache, and
    no mask per query."""
    attributes, inputs = node.attributes, node.inputs
    if len(node.outputs) > 1:
        return None
    if node.domain == MICROSOFT and len(inputs) == 5 and inputs[3] is None:
        plain = attributes.keys() <= {"num_heads", "scale", "mask_filter_value"}
        return attributes.get_int("num_heads") if plain else None
    plain = attributes.keys() <= {"q_num_heads", "kv_num_heads", "scale"}
    heads = attributes.get_int("q_num_heads")
    same = plain and heads == attributes.get_int("kv_num_heads")
    return heads if node.domain == "" and same and len(inputs) <= 4 else None


def _mask(node: ir.Node, source: ir.Value) -> ir.Value | Keys | Decline | None:
    if len(node.inputs) == 3:
        return None
    given, rows = node.inputs[-1], dims(source, 3)
    assert given is not None and rows is not None
    if node.domain == MICROSOFT:
        per_key: Keys | None = Keys(given, node.attributes.get_float("mask_filter_value", -1e4))
    elif given.dtype == ir.DataType.FLOAT and is_above_lowest(given):
        per_key = keys(given)
    else:
        return Decline("its mask may say that a key is not there")
    present = dims(per_key.present, 2) if per_key is not None else None
    if present is not None and all(map(known_equal, present, rows)):
        return per_key
    shape = dims(given, 4)
    square = shape is not None and all(known_equal(dim, rows[1]) for dim in shape[2:])
    return given if square else Decline("its mask is not known to be [B, N, S, T]")


def _projection(value: ir.Value | None) -> Projection | None:
    add, product, bias = made_by(value, "Add"), value, None
    if add is not None:
        biased = biased_product(add)
        if biased is None:
            return None
        product, bias = biased
    multiplication = made_by(product, "MatMul")
    if multiplication is None or not of_float_product(product):
        return None
    if dims(multiplication.inputs[0], 3) is None:
        return None
    source, weight = multiplication.inputs
    assert source is not None and weight is not None
    return Projection(
        source, weight, bias, (multiplication,) if add is None else (add, multiplication)
    )


def _why_not_joined(parts: tuple[Projection, ...]) -> str | None:
    shapes = [dims(each.weight, 2) for each in parts]
    if shapes[0] is None or any(shape != shapes[0] for shape in shapes):
        return "its projections differ in size"
    shared = {each.weight for each in parts if len(each.weight.uses()) > 1}
    copied = sum(each.const_value.nbytes for each in shared if each.const_value is not None)
    if copied > GROWTH_LIMIT_BYTES:
        return f"its weights are shared: joined they would add {copied:,} bytes to the model"
    return None


def _bias(part: Projection) -> np.ndarray:
    numbers, weight = graph.array(part.bias), part.weight.const_value
    assert weight is not None
    return np.zeros(weight.shape.numpy()[1], np.float32) if numbers is None else numbers


projection: Rule[ProjectedAttention] = Rule(
    "projection", frozenset({"Attention", "MultiHeadAttention"}), check, project
)
