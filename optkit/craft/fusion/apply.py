"""Apply a tuple of rules to a graph, in their order, until none matches."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from optkit.craft.fusion.rule import Decline, FusionLog, Rule
from optkit.facts.documents.rewrites import Rewrite
from optkit.ground import graph


def apply(model: ir.Model, rules: tuple[Rule[Any], ...]) -> FusionLog:
    """Rewrite the main graph in place. Subgraphs do not change.

    Every pass infers shapes again and tries every rule at every node; the last pass changes
    nothing. Constants without readers are removed.
    """
    before = _count(model)
    graph.ensure_names(model)
    applied: list[Rewrite] = []
    declined: dict[tuple[str, str], Rewrite] = {}
    changed = True
    while changed:
        graph.infer_shapes(model)
        changed = False
        for rule in rules:
            nodes = [n for n in model.graph if not rule.ops or n.op_type in rule.ops]
            for node in reversed(nodes) if rule.backwards else nodes:
                entry = _try(rule, node)
                if entry is None:
                    continue
                if entry.outcome == "declined":
                    declined[rule.name, entry.node] = entry
                    continue
                declined.pop((rule.name, entry.node), None)
                applied.append(entry)
                changed = True
    applied += _drop_unused(model)
    left = {node.name for node in model.graph}
    kept = [entry for entry in declined.values() if entry.node in left]
    return FusionLog((*applied, *kept), before, _count(model))


def _count(model: ir.Model) -> int:
    """The nodes, with those of subgraphs."""
    return sum(1 for _ in model.graph.all_nodes())


def _try(rule: Rule[Any], node: ir.Node) -> Rewrite | None:
    if node.graph is None:  # an earlier rewrite of this pass removed it
        return None
    name = str(node.name)
    found = rule.check(node)
    if found is None:
        return None
    if isinstance(found, Decline):
        return Rewrite(rule.name, name, "declined", found.reason)
    return Rewrite(rule.name, name, "applied", rule.rewrite(found))


def _drop_unused(model: ir.Model) -> list[Rewrite]:
    constants = model.graph.initializers
    unused = [n for n, v in constants.items() if not v.uses() and not v.is_graph_output()]
    for name in unused:
        del constants[name]
    return [Rewrite("remove_unused", n, "applied", "constant had no user") for n in unused]
