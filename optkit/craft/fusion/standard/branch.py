"""An If whose condition is a constant becomes the branch that it takes."""

from __future__ import annotations

import onnx_ir as ir

from optkit.craft.fusion.rule import Decline, Rule, remove, replace
from optkit.ground import graph

Taken = tuple[ir.Node, ir.Graph, ir.Graph]


def check(node: ir.Node) -> Taken | Decline | None:
    """The If, the branch that it takes, and the other one."""
    condition = graph.array(node.inputs[0])
    if node.domain or condition is None:
        return None
    order = ("then_branch", "else_branch") if condition.item() else ("else_branch", "then_branch")
    taken, other = (node.attributes[name].as_graph() for name in order)
    results = list(taken.outputs)
    if len(set(results)) < len(results) or any(value.producer() is None for value in results):
        return Decline("a result of its branch has no node of its own")
    return node, taken, other


def rewrite(match: Taken) -> str:
    node, taken, other = match
    owner = graph.owner(node)
    for left in list(other.all_nodes()):  # it reads nothing any more
        for index in range(len(left.inputs)):
            left.replace_input_with(index, None)
    results, nodes = list(taken.outputs), list(taken)
    constants = list(taken.initializers.values())
    taken.outputs.clear()
    taken.initializers.clear()
    taken.remove(nodes)
    node.attributes.clear()
    names = set(ir.convenience.create_value_mapping(owner))
    for value in (*constants, *(value for each in nodes for value in each.outputs)):
        value.name = graph.claim_name(str(value.name), names)
    for value in constants:
        owner.register_initializer(value)
    owner.insert_before(node, nodes)
    for old, new in zip(node.outputs, results, strict=True):
        replace(old, new)
    remove(node)
    return f"its condition is a constant: {len(nodes)} nodes of {taken.name} in its place"


take_branch: Rule[Taken] = Rule("take_branch", frozenset({"If"}), check, rewrite)
