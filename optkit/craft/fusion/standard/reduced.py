"""A reduction whose axes come back as ones: Reshape(Reduce(x, axes, keepdims = 0)) to the shape
with keepdims = 1 is the reduction with keepdims = 1. (torch's exporter writes a variance so.)"""

from __future__ import annotations

import onnx_ir as ir

from optkit.craft.fusion.pattern import ints, made_by, read_once
from optkit.craft.fusion.rule import Decline, Rule, keeps_output, remove, replace
from optkit.craft.fusion.standard.noop import unequal

_REDUCTIONS = (
    *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSumExp", "ReduceLogSum"),
)

Pair = tuple[ir.Node, ir.Node]


def check(node: ir.Node) -> Pair | Decline | None:
    """(the reduction, what gives its axes back)."""
    reduction = made_by(node.inputs[0], *_REDUCTIONS)
    if reduction is None or len(reduction.inputs) < 2:
        return None
    source, axes, shape = reduction.inputs[0], ints(reduction.inputs[1]), node.outputs[0].shape
    if source is None or source.shape is None or axes is None or shape is None:
        return None
    if reduction.attributes.get_int("keepdims", 1) or not read_once(reduction.outputs[0]):
        return None
    rank = len(source.shape)
    kept = {axis % rank for axis in axes}
    wanted = [1 if axis in kept else dim for axis, dim in enumerate(source.shape)]
    if unequal(list(shape), wanted) not in (0, 1):
        return None
    return keeps_output(node.outputs[0], reduction.outputs[0]) or (reduction, node)


def keep(match: Pair) -> str:
    reduction, reshape = match
    result = reduction.outputs[0]
    reduction.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
    source, axes = reduction.inputs[0], ints(reduction.inputs[1])
    assert source is not None and source.shape is not None and axes is not None
    kept = {axis % len(source.shape) for axis in axes}
    result.shape = ir.Shape([1 if i in kept else dim for i, dim in enumerate(source.shape)])
    replace(reshape.outputs[0], result)
    remove(reshape)
    return "keeps its axes"


keep_reduced: Rule[Pair] = Rule("keep_reduced", frozenset({"Reshape", "Unsqueeze"}), check, keep)
