"""Products with a matrix of a stack: y[s] = W[i[s]] x[s], where i[s] is the expert that a router
has chosen for a token.

    stack [E, N, K] ── GatherND(i) ── [S, N, K] ──► MatMul ◄── x [S, K, 1]
    stack [E, K, N] ── GatherND(i) ── [S, K, N] ──► MatMul ◄── x [S, 1, K]     (the other operand)
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from optkit.ground.graph.nodes import is_constant

_OPERANDS = (0, 1)

EXPERT_ACCURACY = "optkit.accuracy_level"
"""The key of a product's metadata: the accuracy level with which QMoE multiplies its codes."""


class Stack(NamedTuple):
    """A product with a matrix that `lookup` finds for each row. `place`: the input of the product
    that is the matrix."""

    product: ir.Node
    lookup: ir.Node
    place: int

    @property
    def stored(self) -> ir.Value:
        """The stack, float [E, N, K] or [E, K, N]."""
        value = self.lookup.inputs[0]
        assert value is not None
        return value

    @property
    def chosen(self) -> ir.Value:
        """The index of each row's matrix: [S], of GatherND [S, 1]."""
        value = self.lookup.inputs[1]
        assert value is not None
        return value

    @property
    def rows(self) -> ir.Value:
        """What is multiplied: [S, K, 1] or [S, 1, K]."""
        value = self.product.inputs[1 - self.place]
        assert value is not None
        return value

    @property
    def sizes(self) -> tuple[int, int, int]:
        """E, N and K."""
        assert self.stored.shape is not None
        count, *matrix = self.stored.shape.numpy()
        return count, matrix[self.place], matrix[1 - self.place]


def stack_of(node: ir.Node) -> Stack | None:
    """The stack of a MatMul that multiplies one; None for other nodes."""
    if node.op_type != "MatMul" or node.domain != "":
        return None
    for place in _OPERANDS:
        value = node.inputs[place]
        lookup = None if value is None else value.producer()
        if lookup is not None and finds_matrices(lookup):
            return Stack(node, lookup, place)
    return None


def finds_matrices(lookup: ir.Node) -> bool:
    """Whether a node looks up whole matrices in a constant of them."""
    stored, chosen = (*lookup.inputs, None, None)[:2]
    if lookup.op_type not in ("Gather", "GatherND") or stored is None or chosen is None:
        return False
    if not is_constant(stored) or stored.shape is None or len(stored.shape) != 3:
        return False
    if chosen.shape is None or lookup.domain != "":
        return False
    if lookup.op_type == "Gather":
        return lookup.attributes.get_int("axis", 0) == 0 and len(chosen.shape) == 1
    by_batch = lookup.attributes.get_int("batch_dims", 0)
    return by_batch == 0 and len(chosen.shape) == 2 and chosen.shape[1] == 1
