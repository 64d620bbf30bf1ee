"""A pool of floats before integers.

ONNX Runtime's optimizer moves a QuantizeLinear in front of the MaxPool whose result it reads. Where
an integer convolution computes what is pooled, the pool then reads its codes with the channels
last, and is fast. Where floats do, it reads codes with the channels first, for which there is only
a plain kernel (33 times the time of the pool of floats in the face detector MTCNN), and several
times as many elements become codes. A Max of one operand, which copies the result of the pool,
stops the optimizer:

    float ── MaxPool ── Q      ──►      float ── MaxPool ── Max ── Q
"""

from __future__ import annotations

import onnx_ir as ir

from optkit.craft.fusion.pattern import made_by
from optkit.craft.fusion.rule import Rule
from optkit.ground import graph

# with the codes of an integer operator before them, they are part of its kernel or take its codes
_AFTER_INTEGERS = ("MaxPool", "Relu", "Clip", "Reshape", "Transpose", "Squeeze", "Unsqueeze")


def check(node: ir.Node) -> ir.Node | None:
    """A MaxPool of floats whose result only this node, a quantization, reads."""
    pool = made_by(node.inputs[0], "MaxPool")
    if pool is None or len(pool.outputs) > 1 or len(pool.outputs[0].uses()) > 1:
        return None
    return None if pool.outputs[0].is_graph_output() or _of_integers(pool) else pool


def keep(pool: ir.Node) -> str:
    pooled = pool.outputs[0]
    copy = ir.Value(name=f"{pooled.name}.copy", type=pooled.type, shape=pooled.shape)
    (use,) = pooled.uses()
    use.node.replace_input_with(use.idx, copy)
    graph.owner(pool).insert_after(
        pool, ir.node("Max", [pooled], outputs=[copy], name=f"{pool.name}.copy")
    )
    return "it pools floats"


def _of_integers(node: ir.Node) -> bool:
    """Whether an integer operator computes what the pool reads."""
    while node.op_type in _AFTER_INTEGERS:
        before = node.inputs[0].producer() if node.inputs[0] is not None else None
        if before is None:
            return False
        node = before
    return node.op_type == "DequantizeLinear" or any(
        made_by(value, "DequantizeLinear") is not None for value in node.inputs
    )


float_pool: Rule[ir.Node] = Rule("float_pool", frozenset({"QuantizeLinear"}), check, keep)
