"""A node that computes what another node computes: the same deterministic operator, with equal
attributes, of the same values and of constants with equal contents. Its readers read the other's
results, so a whole branch that a model computes twice disappears, node by node."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.rule import Decline, Rule, keeps_output, remove, replace
from optkit.craft.fusion.standard.constants import KEPT
from optkit.ground import graph

_ROWS = 64  # of a constant that are compared at once: different weights differ in the first of them


@dataclass(frozen=True)
class RepeatedNode:
    """`node` computes the results of `first`, which comes before it."""

    node: ir.Node
    first: ir.Node


def check(node: ir.Node) -> RepeatedNode | Decline | None:
    twin = None if node.op_type in KEPT or node.domain != "" else _twin(node)
    if twin is None:
        return None
    owner = graph.owner(node)
    first = next(each for each in owner if each is node or each is twin)
    later = twin if first is node else node
    for result, source in zip(later.outputs, first.outputs, strict=True):
        if declined := keeps_output(result, source):
            return declined
    return RepeatedNode(later, first)


def _twin(node: ir.Node) -> ir.Node | None:
    """Another node that computes the same of values that are not constant."""
    sources = [v for v in node.inputs if v is not None and not graph.is_constant(v)]
    readers = min((source.consumers() for source in sources), key=len, default=())
    return next((other for other in readers if _is_equal(node, other)), None)


def read_first(match: RepeatedNode) -> str:
    for result, source in zip(match.node.outputs, match.first.outputs, strict=True):
        replace(result, source)
    remove(match.node)
    return f"{match.first.name} computes the same"


def _is_equal(node: ir.Node, other: ir.Node) -> bool:
    if other is node or other.graph is not node.graph:
        return False
    if (other.op_type, other.domain) != (node.op_type, node.domain):
        return False
    if len(other.outputs) != len(node.outputs) or not _attributes_equal(node, other):
        return False
    return all(_same(a, b) for a, b in zip_longest(node.inputs, other.inputs))


def _attributes_equal(node: ir.Node, other: ir.Node) -> bool:
    if node.attributes.keys() != other.attributes.keys():
        return False
    for name, mine in node.attributes.items():
        theirs = other.attributes[name]
        if mine.type != theirs.type:
            return False
        if mine.type == ir.AttributeType.TENSOR:
            if not _tensors_equal(mine.as_tensor(), theirs.as_tensor()):
                return False
        elif mine.value != theirs.value:
            return False
    return True


def _same(a: ir.Value | None, b: ir.Value | None) -> bool:
    if a is b:
        return True
    if a is None or b is None or not (graph.is_constant(a) and graph.is_constant(b)):
        return False
    mine, theirs = ir.convenience.get_const_tensor(a), ir.convenience.get_const_tensor(b)
    return mine is not None and theirs is not None and _tensors_equal(mine, theirs)


def _tensors_equal(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    """Whether all bits are equal: 0 and -0 are not."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape.numpy() != b.shape.numpy():
        return False
    if a.dtype == ir.DataType.STRING:
        return bool(np.array_equal(a.numpy(), b.numpy()))
    blocks = zip(graph.rows(a, _ROWS), graph.rows(b, _ROWS), strict=True)
    return all(mine.tobytes() == theirs.tobytes() for mine, theirs in blocks)


merge_repeated: Rule[RepeatedNode] = Rule("merge_repeated", frozenset(), check, read_first)
