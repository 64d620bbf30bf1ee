"""Fusion into the `standard` form: fewer nodes, the same function, plain ONNX operators only.

RULES is the whole list, in the order in which they are tried; they are applied until none
matches. The result equals the given graph up to float rounding. `widen` comes before: it makes a
half-precision model FP32 inside.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from optkit import graph
from optkit.fusion.affine import fold_scale, fold_shift
from optkit.fusion.batchnorm import fold_batchnorm
from optkit.fusion.constants import fold_constants, fold_shapes
from optkit.fusion.layout import merge_reshapes, merge_transposes, settle_reshape, swap_axes
from optkit.fusion.noop import remove_dead, remove_noop, settle_castlike
from optkit.fusion.rule import Declined, FusionEntry, FusionLog, Rule
from optkit.fusion.widen import widen

__all__ = ["RULES", "FusionEntry", "FusionLog", "Rule", "fuse", "widen"]

RULES: tuple[Rule[Any], ...] = (
    settle_castlike,
    fold_shapes,
    fold_constants,
    remove_noop,
    settle_reshape,
    merge_transposes,
    swap_axes,
    merge_reshapes,
    fold_batchnorm,
    fold_scale,
    fold_shift,
    remove_dead,
)


def fuse(model: ir.Model) -> FusionLog:
    """Apply RULES to the main graph until none matches, in place. Subgraphs are left as they are.

    Conv, MatMul and Gemm keep their node names; a value that still exists keeps its name.
    """
    before = len(model.graph)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    graph.ensure_names(model)
    applied: list[FusionEntry] = []
    declined: dict[tuple[str, str], FusionEntry] = {}
    changed = True
    while changed:
        graph.infer_shapes(model)
        changed = False
        for rule in RULES:
            for node in [n for n in model.graph if not rule.ops or n.op_type in rule.ops]:
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
    return FusionLog((*applied, *kept), before, len(model.graph))


def _try(rule: Rule[Any], node: ir.Node) -> FusionEntry | None:
    if node.graph is None:  # an earlier rewrite of this pass removed it
        return None
    name = str(node.name)
    found = rule.check(node)
    if found is None:
        return None
    if isinstance(found, Declined):
        return FusionEntry(rule.name, name, "declined", found.reason)
    return FusionEntry(rule.name, name, "applied", rule.rewrite(found))


def _drop_unused(model: ir.Model) -> list[FusionEntry]:
    constants = model.graph.initializers
    unused = [n for n, v in constants.items() if not v.uses() and not v.is_graph_output()]
    for name in unused:
        del constants[name]
    return [FusionEntry("remove_unused", n, "applied", "constant had no user") for n in unused]
