"""PRelu with slopes of at most 1 as the larger of two values.

    PRelu(x) = x where x ≥ 0, otherwise slope · x          Max(x, slope · x)

The kernel of ONNX Runtime for PRelu takes 5 to 8 times as long (docs/studies/fusion.md). The result
is the same bit by bit, where neither a slope is 0 nor a value infinite. (He et al. 2015,
arXiv:1502.01852.)
"""

from __future__ import annotations

import onnx_ir as ir

from optkit.craft.fusion.ort.write import put
from optkit.craft.fusion.rule import Decline, Rule
from optkit.ground import graph


def check(node: ir.Node) -> ir.Node | Decline | None:
    x, slope = node.inputs
    slopes = None if slope is None else graph.array(slope)
    if node.domain or x is None or slopes is None:
        return None
    if not ((slopes != 0) & (slopes <= 1)).all():
        return Decline("a slope is 0 or above 1")
    return node


def take_larger(node: ir.Node) -> str:
    x, slope = node.inputs
    assert x is not None
    scaled = ir.Value(name=f"{node.name}.scaled", type=x.type, shape=x.shape)
    graph.owner(node).insert_before(
        node, ir.node("Mul", [x, slope], outputs=[scaled], name=f"{node.name}.scaled")
    )
    put(node, "Max", [x, scaled], node.outputs[0])
    return "the larger of two values"


prelu: Rule[ir.Node] = Rule("prelu", frozenset({"PRelu"}), check, take_larger)
