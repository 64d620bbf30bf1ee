"""The layout of the first integer activation of a convolutional network.

The integer convolutions of ONNX Runtime have the channels last. Its optimizer removes the
Transposes between them, also through sums of codes, if every operand of a sum has one. The shortcut
of the first block has none if a float stem computes it; then two Transposes of full size remain at
every sum of the stage. So this rule transposes the codes and transposes them back:

    Q ──► Transpose ──► Reshape (to the same shape) ──► Transpose ──► DQ ──► Conv, Add

The function is the identity. The Reshape prevents the optimizer from removing the two Transposes as
a pair. The following nodes absorb the second one, and one Transpose remains of five (9 % of the
time at batch 1).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from optkit.craft.fusion.ort.write import constant
from optkit.craft.fusion.pattern import dims, made_by
from optkit.craft.fusion.rule import Rule
from optkit.ground import graph

_INTEGER = ("Conv", "Add", "MaxPool", "AveragePool", "Concat")
_ACTIVATIONS = ("Relu", "Clip")


def check(node: ir.Node) -> ir.Node | None:
    """A quantization of the output of a float operator that an integer Conv and an integer sum
    read."""
    codes = node.outputs[0]
    if dims(codes, 4) is None or codes.is_graph_output() or _from_integers(node.inputs[0]):
        return None
    dequantized = [use.node for use in codes.uses()]
    if any(each.op_type != "DequantizeLinear" for each in dequantized):
        return None
    readers = [use.node for each in dequantized for use in each.outputs[0].uses()]
    operators = {reader.op_type for reader in readers if _reads_integers(reader)}
    return node if {"Conv", "Add"} <= operators else None


def turn(node: ir.Node) -> str:
    owner, codes = graph.owner(node), node.outputs[0]
    batch, channels, height, width = dims(codes, 4) or []
    uses = list(codes.uses())
    same = constant(owner, "layout.same", np.zeros(4, np.int64))
    name = str(codes.name)
    last, kept, first = (ir.Value(name=f"{name}.{part}") for part in ("last", "kept", "first"))
    for value in (last, kept, first):
        value.type = codes.type
        value.shape = ir.Shape([batch, height, width, channels])
    first.shape = codes.shape
    nodes = [
        ir.node("Transpose", [codes], {"perm": [0, 2, 3, 1]}, outputs=[last], name=f"{name}.last"),
        ir.node("Reshape", [last, same], outputs=[kept], name=f"{name}.kept"),
        ir.node("Transpose", [kept], {"perm": [0, 3, 1, 2]}, outputs=[first], name=f"{name}.first"),
    ]
    owner.insert_after(node, nodes)
    for use in uses:
        use.node.replace_input_with(use.idx, first)
    return "its codes have the channels last"


def _from_integers(value: ir.Value | None) -> bool:
    """Whether integers will compute the value, so that its codes already have the channels last."""
    activation = made_by(value, *_ACTIVATIONS)
    node = made_by(activation.inputs[0] if activation is not None else value, *_INTEGER)
    return node is not None and _reads_integers(node)


def _reads_integers(node: ir.Node) -> bool:
    if node.op_type == "Add":
        return any(_integers(value) for value in node.inputs)
    return all(_integers(value) for value in node.inputs[: 2 if node.op_type == "Conv" else 1])


def _integers(value: ir.Value | None) -> bool:
    return made_by(value, "DequantizeLinear") is not None


channels_last: Rule[ir.Node] = Rule("channels_last", frozenset({"QuantizeLinear"}), check, turn)
