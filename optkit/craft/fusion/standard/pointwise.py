"""A function of one number as one operator: 1 / (1 + exp(−x)) is Sigmoid, max(x, x / 10) LeakyRelu,
(eˣ − e⁻ˣ) / (eˣ + e⁻ˣ) Tanh. The operator also has the right value where a part of the written form
overflows."""

from __future__ import annotations

import onnx_ir as ir

from optkit.craft.fusion.function import ELEMENTWISE, PLAIN, RecognizedFunction, recognized
from optkit.craft.fusion.rule import Decline, Rule, remove, replace
from optkit.ground import graph


def check(node: ir.Node) -> RecognizedFunction | Decline | None:
    if node.domain != "" or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    found = recognized(node, PLAIN)
    return None if found is None or found.function.op == node.op_type else found


def write(match: RecognizedFunction) -> str:
    last, function = match.written.last, match.function
    result = last.outputs[0]
    node = ir.node(function.op, [match.written.source], match.attributes, name=last.name)
    output = node.outputs[0]
    output.type, output.shape = result.type, result.shape
    graph.owner(last).insert_before(last, node)
    name = result.name
    replace(result, output)
    output.name = name
    remove(last)
    return f"{len(match.written.nodes)} nodes compute {function.op}"


one_function: Rule[RecognizedFunction] = Rule("one_function", frozenset(ELEMENTWISE), check, write)
