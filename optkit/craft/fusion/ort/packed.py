"""GroupQueryAttention that reads the rows of a product directly.

    GQA(*Split(rows), …)  =  GQA(rows, None, None, …)        [q | k | v] side by side

The kernel could also rotate queries and keys (`do_rotary`). But in a prompt of several samples it
assumes that every sample begins at position 0, whatever its input position_ids says (ONNX Runtime
1.31), so it would rotate samples with left padding by wrong angles.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from optkit.craft.fusion.ort.write import MICROSOFT
from optkit.craft.fusion.pattern import dims, made_by, read_once
from optkit.craft.fusion.rule import Decline, Rule, remove

_Q, _K, _V = range(3)


@dataclass(frozen=True)
class PackedAttention:
    """`split` parts rows into the queries, keys and values of the attention `node`."""

    node: ir.Node
    split: ir.Node


def check(node: ir.Node) -> PackedAttention | Decline | None:
    split = made_by(node.inputs[_Q], "Split")
    if split is None or node.domain != MICROSOFT:
        return None
    rows = dims(split.inputs[0], 3)
    axis = split.attributes.get_int("axis", 0)
    if rows is None or axis not in (-1, 2) or list(split.outputs) != list(node.inputs[: _V + 1]):
        return Decline("its queries, keys and values do not lie side by side")
    if not all(read_once(each) for each in split.outputs):
        return Decline("its queries, keys or values are also used elsewhere")
    return PackedAttention(node, split)


def take(match: PackedAttention) -> str:
    node, split = match.node, match.split
    node.replace_input_with(_Q, split.inputs[0])
    for at in (_K, _V):
        node.replace_input_with(at, None)
    remove(split)
    return "it takes queries, keys and values side by side"


packed: Rule[PackedAttention] = Rule("packed", frozenset({"GroupQueryAttention"}), check, take)
