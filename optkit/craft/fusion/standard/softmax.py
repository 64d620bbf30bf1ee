"""A softmax that is written in several operators, as one operator.

    exp(x − max x) / Σ exp(x − max x)  =  exp(x) / Σ exp(x)  =  exp(x − logsumexp x)        Softmax
    x − logsumexp x                                                                      LogSoftmax

over one axis. The operator subtracts the maximum itself, so it also has the right value where exp
overflows. Compilers and runtimes have one kernel for it, and know an attention by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from optkit.craft.fusion.pattern import Either, Match, Op, Var, ints, made_by
from optkit.craft.fusion.rule import Decline, Rule, remove, replace
from optkit.ground import graph

_X, _EXP = Var("x"), Op("Exp", Var("z"), result="exp")
_SUM = Op("ReduceSum", Var("exp"), result="reduced")
_RATIO = Either((Op("Div", _EXP, _SUM), Op("Mul", _EXP, Op("Reciprocal", _SUM))))
_SHIFTED = Op("Sub", _X, Op("ReduceLogSumExp", _X, result="reduced"))
_CENTRED = Op("Sub", _X, Op("ReduceMax", _X, result="reduced"))


@dataclass(frozen=True)
class Softmax:
    """`node` computes `op` of `source` along `axis`."""

    node: ir.Node
    op: str
    source: ir.Value
    axis: int


def check(node: ir.Node) -> Softmax | Decline | None:
    result = node.outputs[0]
    if node.domain != "" or result.dtype != ir.DataType.FLOAT:
        return None
    for match in _RATIO.matches(result):
        axis = _axis(match)
        if axis is None:
            return Decline("it does not divide by the sum along one axis")
        source = match["z"]
        for centred in _CENTRED.matches(source):
            source = centred["x"] if _axis(centred) == axis else source
        return Softmax(node, "Softmax", source, axis)
    if (log := made_by(node.inputs[0], "LogSoftmax")) is not None and node.op_type == "Exp":
        assert log.inputs[0] is not None
        return Softmax(node, "Softmax", log.inputs[0], log.attributes.get_int("axis", -1))
    for match in _SHIFTED.matches(result):
        if (axis := _axis(match)) is not None:
            return Softmax(node, "LogSoftmax", match["x"], axis)
    return None


def write(match: Softmax) -> str:
    node, result = match.node, match.node.outputs[0]
    softmax = ir.node(match.op, [match.source], {"axis": match.axis}, name=node.name)
    output = softmax.outputs[0]
    output.type, output.shape = result.type, result.shape
    graph.owner(node).insert_before(node, softmax)
    name = result.name
    replace(result, output)
    output.name = name
    remove(node)
    return "one operator"


def _axis(match: Match) -> int | None:
    """The only axis, counted from the first, over which a node reduces and which it keeps."""
    node = made_by(match["reduced"], "ReduceSum", "ReduceMax", "ReduceLogSumExp")
    source = node.inputs[0] if node is not None else None
    if node is None or source is None or source.shape is None or len(node.inputs) < 2:
        return None
    axes = ints(node.inputs[1])
    if axes is None or len(axes) != 1 or not node.attributes.get_int("keepdims", 1):
        return None
    return axes[0] % len(source.shape)


softmax: Rule[Softmax] = Rule("softmax", frozenset({"Div", "Mul", "Exp", "Sub"}), check, write)
